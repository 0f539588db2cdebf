const data = JSON.parse(document.getElementById("data").textContent);
const last = Math.max(1, ...data.samples.map((s) => s.steps));
const quoted = (text) => JSON.stringify(text).slice(1, -1);
const written = (sample) => sample.cells.filter((c) => c.step !== undefined);
// Samples of one policy stand in one row, under a map of all of them.
const groups = new Map();
for (const sample of data.samples) {
  const key = JSON.stringify([sample.name, sample.settings]);
  groups.set(key, [...(groups.get(key) || []), sample]);
}
const policies = [...groups.values()].map((samples) => ({samples, shown: samples.slice(0, data.each), chosen: 0, map: null}));
const rows = policies.some(({samples}) => samples.length > 1);
let entries = [];  // one for each position that is shown and was written: {sample, cell, token, dot}

const settings = (sample) => sample.settings.map(([symbol, index, value]) =>
  make("span", {}, symbol, index ? make("sub", {}, index) : "", ` = ${value}`));
const title = (sample) => make("h2", {title: sample.formula}, sample.name);

function panel(sample) {
  const text = make("div", {class: "text"});
  const plot = make("svg", {role: "img", "aria-label": "Step at which each position was committed"});
  const cells = written(sample);
  const radius = Math.max(1.6, Math.min(5, 190 / cells.length));
  plot.style.setProperty("--ring", Math.min(2, radius / 2));
  const height = 128, top = 8, bottom = 106;
  plot.append(
    make("line", {class: "axis", x1: 0, x2: "100%", y1: bottom + 8, y2: bottom + 8}),
    make("line", {class: "sweep", x1: 0, x2: "100%", y1: 0, y2: 0}),
    make("text", {x: 0, y: height}, "position"),
    make("text", {x: "100%", y: height, "text-anchor": "end"}, "↑ step"));
  const strip = sample.strip = new TokenStrip(sample.cells, {fork: data.fork});
  text.append(...strip.parts);
  strip.nodes.forEach(({cell, node: token, fork}, place) => {
    const x = cells.length > 1 ? 1 + 98 * place / (cells.length - 1) : 50;
    const y = bottom - (bottom - top) * share(cell.step, last);
    const dot = make("circle", {class: (fork ? "fork" : "") + (cell.special ? " end" : ""), cx: x + "%", cy: y, r: radius});
    paint(dot, cell.step, last);
    plot.append(dot);
    token.dataset.entry = dot.dataset.entry = entries.length;
    entries.push({sample, cell, fork, token, dot});
  });
  const mean = (key) => { const some = cells.filter((c) => c.step >= 0); return some.reduce((a, c) => a + c[key], 0) / Math.max(1, some.length); };
  const forks = entries.filter((e) => e.sample === sample && e.fork).length;
  const again = cells.reduce((sum, cell) => sum + (cell.before || []).length, 0);
  sample.clock = make("span", {class: "clock"});
  sample.sweep = plot.querySelector(".sweep");
  sample.heights = {top, bottom};
  const which = make("span", {}, `sample ${sample.index} `, sign(sample.verdict));
  return make("article", {class: "card"},
    make("div", {class: "head"},
      make("div", {}, rows ? "" : title(sample), make("div", {class: "settings"}, ...(rows ? [] : settings(sample)), which)), sample.clock),
    text,
    make("div", {class: "plot"}, plot),
    make("p", {class: "facts"},
      fact(sample.nfe, "NFE"), fact(cells.length, "positions"),
      fact(forks, forks === 1 ? "fork" : "forks", "forks"), fact(mean("entropy").toFixed(2), "nats at commit, mean"),
      ...(again ? [fact(again, again === 1 ? "rewrite" : "rewrites")] : [])));
}

function grid(samples) {
  const node = make("div", {class: "samples"}, ...samples.map(panel));
  node.style.setProperty("--columns", samples.length === 4 ? 2 : Math.min(3, samples.length));
  return node;
}
function policyRow(policy) {
  const {samples} = policy;
  if (!policy.map) {
    policy.map = new OrderMap(`Samples of ${samples[0].name}`, (n) => {
      const sample = samples[n];
      if (!policy.shown.includes(sample)) policy.shown = [sample, ...policy.shown.slice(0, -1)];
      policy.chosen = n;
      render();
      policy.map.node.focus();
    });
    policy.map.node.style.height = `${Math.max(90, Math.min(320, 8 * samples.length))}px`;
  }
  policy.map.draw(samples.map((s) => ({name: `sample ${s.index}`, verdict: s.verdict, steps: written(s).map((c) => c.step), text: (n) => written(s)[n].special ? "" : written(s)[n].text})), last);
  policy.map.show(policy.chosen, `sample ${samples[policy.chosen].index}${samples[policy.chosen].verdict ? ", " + samples[policy.chosen].verdict : ""}`);
  const right = samples.filter((s) => s.verdict === "right").length, graded = samples.filter((s) => s.verdict).length;
  return make("section", {class: "policy"},
    make("div", {class: "head"}, title(samples[0]), make("div", {class: "settings"}, ...settings(samples[0]),
      make("span", {}, `${samples.length} samples`), ...(graded ? [make("span", {}, `${right} of ${graded} right`)] : []))),
    make("div", {class: "body"},
      make("div", {class: "order"}, make("h3", {class: "small"}, "order: samples ↓ positions →"), policy.map.node,
        make("div", {class: "scale"}, "first", make("b"), "last")),
      grid(policy.shown)));
}
function render() {
  entries = [];
  $("main").replaceChildren(...(rows ? policies.map(policyRow) : [grid(policies.map((p) => p.samples[0]))]));
  show(+slider.value);
}

document.title = data.title;
$(".about").textContent = data.samples.length === 1 ? "one sample" : `${data.samples.length} samples on one clock`;
if (data.prompt !== null) {
  $(".prompt").hidden = false;
  $(".prompt p").textContent = data.prompt;
}
$(".key").textContent = `fork: ${data.fork.toFixed(2)} nats or more when committed`;

const slider = $("#step");
slider.max = last;
function show(done) {
  slider.value = done;
  for (const {cell, dot} of entries) dot.classList.toggle("on", cell.step < done && standing(cell, done) !== null);
  let sum = 0;
  for (const sample of new Set(entries.map((e) => e.sample))) {
    sample.strip.show(done, last);
    const {top, bottom} = sample.heights, finished = done >= sample.steps;
    const y = bottom - (bottom - top) * (last > 1 ? Math.min(done - 1, sample.steps - 1) / (last - 1) : 0);
    sample.sweep.setAttribute("y1", y); sample.sweep.setAttribute("y2", y);
    sample.sweep.style.display = done > 0 && !finished ? "" : "none";
    sample.clock.textContent = finished ? `done in ${sample.steps} steps` : `step ${done} of ${sample.steps}`;
    sample.clock.classList.toggle("done", finished);
    sum += written(sample).filter((cell) => standing(cell, done) !== null).length;
  }
  $(".count").replaceChildren(`step ${done} / ${last}`, make("small", {}, `${sum} tokens written`));
}

let timer = null;
function play(on) {
  clearInterval(timer);
  timer = null;
  document.body.classList.toggle("playing", on);
  $("#play").setAttribute("aria-label", on ? "Pause" : "Play");
  if (!on) return;
  if (+slider.value >= last) show(0);
  timer = setInterval(() => {
    show(+slider.value + 1);
    if (+slider.value >= last) play(false);
  }, pace(last, 7000, 450));
}
$("#play").addEventListener("click", () => play(timer === null));
slider.addEventListener("input", () => { play(false); show(+slider.value); });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const now = +slider.value;
  const to = {ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last}[event.key];
  if (event.key === " ") play(timer === null);
  else if (to !== undefined) { play(false); show(Math.min(last, Math.max(0, to))); }
  else return;
  event.preventDefault();
});

const bar = (kind, share) => {
  const filled = make("i");
  filled.style.width = `${Math.round(100 * Math.min(1, share))}%`;
  return make("dd", {class: "bar " + kind}, filled);
};
const tip = $("#tip");
function point(target) {
  document.querySelectorAll(".lit").forEach((node) => node.classList.remove("lit"));
  const entry = entries[target?.dataset?.entry];
  tip.style.display = entry ? "block" : "none";
  if (!entry) return;
  const {cell, fork, token, dot, sample} = entry, never = cell.step < 0, done = +slider.value;
  token.classList.add("lit");
  dot.classList.add("lit");
  const early = cell.step >= done && !never, hidden = early && standing(cell, done) === null;
  const row = (name, value, share, kind = "") => [make("dt", {}, name),
    bar(kind, share), make("dd", {}, value)];
  tip.replaceChildren(
    make("div", {class: "what"}, hidden ? "masked" : `“${quoted(early ? standing(cell, done) : cell.text)}”`),
    make("div", {class: "where"}, never ? `position ${cell.position}, after the end: never written` :
      early ? `position ${cell.position}, ${cell.before ? "for good " : ""}written in step ${cell.step + 1}` :
      `position ${cell.position}, id ${cell.id}, step ${cell.step + 1} of ${sample.steps}`));
  if (cell.before && !early) tip.append(make("div", {class: "where"}, `before: ${cell.before.map(([step, text]) => `${text === null ? "mask" : `“${quoted(text)}”`} (step ${step + 1})`).join(", ")}`));
  if (never || early) return place(target);
  tip.append(make("dl", {},
    ...row("confidence", cell.confidence.toFixed(3), cell.confidence),
    ...row("entropy", `${cell.entropy.toFixed(3)} nats`, cell.entropy / Math.max(data.most, 1e-9), "h")));
  if (fork) tip.append(make("div", {class: "isfork"}, "fork: undecided when it was written"));
  place(target);
}
// Beside what it explains, never on it: above a token (the plot lies below the text), below the plot of a dot.
function place(target) {
  const at = target.getBoundingClientRect(), box = tip.getBoundingClientRect();
  const plot = target.ownerSVGElement?.getBoundingClientRect();
  let left = at.left + at.width / 2 - box.width / 2, top = at.top - box.height - 10;
  if (plot) top = plot.bottom + 6 + box.height < innerHeight - 90 ? plot.bottom + 6 : plot.top - box.height - 6;
  else if (top < 8) [left, top] = [at.right + 10, 8];
  tip.style.left = `${Math.max(8, Math.min(innerWidth - box.width - 8, left))}px`;
  tip.style.top = `${top}px`;
}
document.addEventListener("pointerover", (event) => point(event.target.closest?.("[data-entry]")));
document.addEventListener("scroll", () => point(null), {passive: true});

slider.value = last;
render();
