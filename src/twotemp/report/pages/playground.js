let about = null, running = null;
const panels = [];

// The state is in the address.
const FIELDS = ["prompt", "problem", "t", "n", "length", "block", "seed"];
const remember = () => {
  const state = new URLSearchParams(FIELDS.map((name) => [name, $("#" + name).value]));
  for (const panel of panels) state.set(panel.side, panel.spec);
  history.replaceState(null, "", "#" + state);
};
const problem = () => about.problems.get($("#problem").value);
const turns = () => [{role: "user", content: $("#prompt").value}, ...(problem()?.prefill ? [{role: "assistant", content: problem().prefill}] : [])];
const body = (panel) => ({
  model: about.model, ...(about.chat ? {messages: turns()} : {prompt: $("#prompt").value}), policy: panel.spec,
  temperature: +$("#t").value, n: +$("#n").value, max_tokens: +$("#length").value, ...($("#block").value ? {block: +$("#block").value} : {}), seed: +$("#seed").value,
});
async function judge(panel, signal) {
  const given = problem();
  if (!given || $("#prompt").value !== given.prompt) return panel.settle();
  if (!source.live) panel.settle();  // grades of a server take a while
  const texts = [...new Set(panel.rows.map((row) => row.text))];
  const grades = await source.grade(given, texts, signal);
  panel.grades = new Map(texts.map((text, n) => [text, grades[n]]));
  panel.settle();
}

async function run() {
  if (!$("#ask").reportValidity()) return;
  running?.abort();
  const mine = running = new AbortController(), began = performance.now();
  remember();
  $("#error").hidden = true;
  $("#status").textContent = "sampling …";
  document.body.dataset.state = "running";
  delete document.body.dataset.foreign;
  try {
    const answers = await Promise.all(panels.map((panel) => source.start(panel, mine.signal)));
    if (mine !== running) return;
    // Only now: earlier results stay where the server does not answer.
    $("#curve").hidden = true;
    for (const panel of panels) panel.begin(+$("#n").value, +$("#length").value);
    await Promise.all(panels.map((panel, which) => source.read(panel, answers[which])));
    const seconds = (performance.now() - began) / 1000;
    await Promise.all(panels.map((panel) => judge(panel, mine.signal)));
    curve();
    $("#status").textContent = `${about.model}: ${$("#n").value} samples of each policy in ${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  } catch (error) {
    if (mine !== running) return;
    mine.abort();
    $("#error").textContent = error.message;
    $("#error").hidden = false;
    $("#status").textContent = "";
  }
  if (mine === running) document.body.dataset.state = "done";
}

function curve() {
  if (!panels.every((panel) => panel.grades.size)) return;
  $("#curve").hidden = false;
  const series = panels.map((panel) => {
    const y = passes(panel.rows.length, panel.right);
    return {name: `${panel.side.toUpperCase()}: ${panel.title}`, color: `var(--${panel.side})`, x: y.map((_, j) => j + 1), y};
  });
  $("#curve").replaceChildren(new Chart({title: "pass@k", x: {label: "k", log: true}, y: {percent: true}, series, height: 190}).node);
}

async function copy(text, what) {
  try { await navigator.clipboard.writeText(text); $("#copied").textContent = `${what} copied`; }
  catch { window.prompt("Copy this:", text); }
}
const quoted = (text) => JSON.stringify(text);
const withToken = (panel) => panel.spec.split(ENTRIES).map((entry) => entry.trim() + (entry.includes(":") ? "," : ":") + `t_token=${$("#t").value}`).join(" + ");
const python = () => `import twotemp

model = twotemp.load(${quoted(about.model)})
for policy in (${panels.map((panel) => quoted(withToken(panel))).join(", ")}):
    print(twotemp.sample(model, ${problem()?.prefill ? quoted(turns()) : quoted($("#prompt").value)}, policy, n=${$("#n").value}, length=${$("#length").value}, ${$("#block").value ? `block=${$("#block").value}, ` : ""}seed=${$("#seed").value}))
`;
const keyed = () => $("#key").value ? ` -H "authorization: Bearer $TWOTEMP_API_KEY"` : "";
const curl = () => panels.map((panel) => `curl ${location.origin}${address()} -H 'content-type: application/json'${keyed()} -d '${JSON.stringify(body(panel)).replaceAll("'", "'\\''")}'`).join("\n");
$("#python").addEventListener("click", () => copy(python(), "Python"));
$("#curl").addEventListener("click", () => copy(curl(), "curl"));
$("#link").addEventListener("click", () => { remember(); copy(location.href, "link"); });
$("#ask").addEventListener("submit", (event) => { event.preventDefault(); about ? run() : open(); });
$("#problem").addEventListener("change", () => {
  const chosen = problem();
  if (!chosen) return;
  $("#prompt").value = chosen.prompt;
  $("#length").value = chosen.length;
  run();
});
$("#prompt").addEventListener("keydown", (event) => {  // Shift + Enter begins a new line
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("#ask").requestSubmit();
});
$("#prompt").addEventListener("input", () => { if ($("#problem").value) $("#problem").value = ""; });

async function open() {
  $("#error").hidden = true;
  try { about = await source.about(); }
  catch (error) { $("#error").textContent = error.message; $("#error").hidden = false; return; }
  about.problems = new Map();
  for (const task of about.tasks) {
    const group = make("optgroup", {label: task.name});
    task.problems.forEach((one, n) => {
      about.problems.set(one.id, {...one, task: task.name, length: task.length});
      group.append(make("option", {value: one.id}, `${task.name} ${n}: ${one.prompt.slice(0, 36)}`));
    });
    $("#problem").append(group);
  }
  recall();
}
function recall() {
  // To begin with: the embedded model, at a problem that it sometimes solves.
  const home = about.model === "tiny", first = about.tasks[0].problems[0];
  const given = {prompt: home ? first.prompt : "", problem: home ? first.id : "", t: 0.8, n: 48, length: home ? about.tasks[0].length : 64, block: "", seed: 0, a: "lc", b: "tlc"};
  const state = {...given, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1)))};
  for (const name of FIELDS) $("#" + name).value = state[name];
  panels.splice(0, 2, new Panel("a", state.a), new Panel("b", state.b));
  $("#panels").replaceChildren(...panels.map((panel) => panel.node));
  // Another site may open this page, but only a click here draws samples.
  if ("foreign" in document.body.dataset) $("#status").textContent = "opened from another site: press Sample to draw";
  else if (home || location.hash) run();
}
// Inside another page there is room for the essentials only.
if (window !== window.top) {
  document.body.classList.add("embedded");
  const wrap = $(".wrap"), tell = () => window.parent.postMessage({playgroundHeight: Math.ceil(wrap.getBoundingClientRect().height) + 16}, "*");
  new ResizeObserver(tell).observe(wrap);  // so that the outer page can give it the room it needs
}
addEventListener("hashchange", () => about && recall());
open();
