// Which part is shown, and with what choices, is in the address: a link shows the same to others.
let data = null;
const state = {question: null, task: "", set: "", filter: "all", sort: "order", a: 0, b: 0, search: "", "sample-a": "", "sample-b": ""};
const PARTS = ["overview", "questions", "question"];
const part = () => state.question !== null ? "question" : location.hash.startsWith("#questions") ? "questions" : "overview";
const defaults = () => ({question: null, task: "", set: sets()[0] ?? "", filter: "all", sort: "order", a: pick("tlc", "tct") ?? 0, b: pick("lc", "ct") ?? Math.max(0, data.policies.length - 1), search: "", "sample-a": "", "sample-b": ""});
const pick = (...names) => { for (const name of names) { const n = data.policies.findIndex(({spec}) => spec.split(":")[0] === name); if (n >= 0) return n; } };

const address = (changed) => {
  const next = {...state, ...changed}, usual = defaults();
  const kept = Object.entries(next).filter(([name, value]) => value !== null && value !== "" && String(value) !== String(usual[name]));
  return "#questions" + (kept.length ? "?" + new URLSearchParams(kept) : "");
};
const go = (changed, redraw = true) => {
  history[redraw ? "pushState" : "replaceState"](null, "", address(changed));
  recall();
  if (redraw) draw();
  else drawRows();
};
function recall() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] ?? ""));
  Object.assign(state, defaults(), given);
  for (const side of ["a", "b"]) state[side] = state[side] in data.policies ? +state[side] : defaults()[side];
  if (!(state.filter in FILTERS)) state.filter = "all";
  if (!(state.sort in SORTS)) state.sort = "order";
  if (!sets().includes(state.set)) state.set = sets()[0];
}

let seen = "";  // the part and the question that were drawn last
async function draw() {
  const shown = part(), now = `${shown} ${state.question}`;
  if (now !== seen) scrollTo(0, 0);  // a link to a part does not hide the header
  seen = now;
  for (const name of PARTS) $(`#part-${name}`).hidden = name !== shown;
  for (const name of ["overview", "questions"]) $(`#to-${name}`).toggleAttribute("aria-current", (shown === "question" ? "questions" : shown) === name);
  try {
    if (shown === "overview") drawOverview();
    else if (shown === "questions") drawQuestions();
    else await drawQuestion();
    $("#error").hidden = true;
  } catch (error) { fail(error); }
  document.body.dataset.state = "drawn";
}
const fail = (error) => { $("#error").textContent = error.message; $("#error").hidden = false; };

async function load() {
  try {
    const next = await source.overview();
    const first = data === null;
    if (!first && next.version === data.version) return;
    const grown = !first && (next.policies ?? []).length !== data.policies.length;
    data = {policies: [], questions: [], ...next};
    document.title = `${data.title}: twotemp view`;
    $("#run").textContent = data.title;
    $("#to-questions").hidden = !data.questions.length;
    $("#to-questions").textContent = data.kind === "grpo" ? "Rollouts" : "Questions";
    $("#status").textContent = data.status ?? "";
    recall();
    // A run that grows must not disturb what is being read.
    if (first || part() === "overview" || (grown && part() === "questions")) await draw();
    else if (part() === "questions") drawRows();
  } catch (error) { fail(error); }
}
addEventListener("hashchange", () => { if (data) { recall(); draw(); } });
addEventListener("popstate", () => { if (data) { recall(); draw(); } });
load();
if (source.every) setInterval(load, source.every);
