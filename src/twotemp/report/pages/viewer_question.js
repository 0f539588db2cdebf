// One question: two policies side by side, every answer, every sample.
const outcomeVerdict = (grade) => !grade || grade[0] === "ungraded" ? "" : grade[0] === "passed" ? "right" : "wrong";

// The samples of a policy in a chunk, as objects.
const samplesOf = (chunk, policy) => {
  const columns = chunk.cells[policy];
  return !columns ? [] : columns.index.map((index, n) => ({
    index, nfe: columns.nfe[n], reward: columns.reward?.[n], text: chunk.texts[columns.text[n]], grade: chunk.grades[columns.grade[n]], trace: columns.trace?.[n] ?? null,
  }));
};
const pieceOf = (token) => data.special.includes(token) ? "" : data.pieces[token] ?? String(token);
const cellsOf = (trace) => {
  const special = new Set(data.special);
  const cells = trace.tokens.map((token, n) => ({
    text: data.pieces[token] ?? String(token), special: special.has(token), step: trace.steps[n], confidence: trace.confidence[n] / 1000, entropy: trace.entropy[n] / 100,
  }));
  // With remasking every other write of a position is the mask, which has no text among the pieces of a text.
  for (const [step, n, token] of trace.edits ?? []) (cells[n].before ??= []).push([step, data.pieces[token] ?? null]);
  return cells;
};
const FORK = Math.log(2);  // nats: as undecided as a fair coin

class Side {
  constructor(side, chunk, policies) {
    this.side = side; this.chunk = chunk;
    this.chosen = 0;
    const names = policies.map(({n, name}) => [n, name]);
    this.policy = chooser(`policy-${side}`, `policy ${side.toUpperCase()}`, names, state[side], (n) => go({[side]: +n, [`sample-${side}`]: ""}));
    this.samples = samplesOf(chunk, state[side]);
    this.list = new AnswerList((n) => this.choose(n));
    this.node = make("section", {class: "card side", "aria-label": `Policy ${side.toUpperCase()}`}, this.policy);
    if (!this.samples.length) { this.node.append(make("p", {}, "no samples")); return; }
    this.fill();
  }
  fill() {
    const {samples} = this, right = samples.filter(({grade}) => grade?.[0] === "passed").length;
    const answers = distinct(samples.map(({grade, text}) => grade?.[1] ?? text.trim()), (_, n) => outcomeVerdict(samples[n].grade), (_, n) => samples[n].grade?.[3], (n) => typeof samples[n].grade?.[1] === "string");
    const texts = distinct(samples.map(({text}) => text), (_, n) => outcomeVerdict(samples[n].grade));
    const facts = make("p", {class: "facts"}, fact(`${right} of ${samples.length}`, "right"), fact(answers.filter(({found}) => found).length, "distinct answers"), fact(texts.length, "distinct texts"),
      fact(bits(answers).toFixed(2), "bits of entropy"), fact((samples.reduce((sum, {nfe}) => sum + nfe, 0) / samples.length).toFixed(1), "NFE, mean"));
    this.node.append(facts);
    this.list.draw(answers);
    this.node.append(make("h3", {class: "small"}, "distinct answers", answers.some(({found}) => !found) ? "; texts without one are grey" : ""), this.list.node);
    this.traced = samples.map((sample, n) => ({...sample, n})).filter(({trace}) => trace);
    if (this.traced.length) {
      this.map = new OrderMap(`Samples of policy ${this.side.toUpperCase()}`, (n) => this.choose(this.traced[n].n));
      this.map.node.style.height = `${Math.max(60, Math.min(220, 5 * this.traced.length))}px`;
      this.steps = Math.max(1, ...this.traced.flatMap(({trace}) => trace.steps)) + 1;
      this.map.draw(this.traced.map(({index, trace, grade}) => ({name: `sample ${index}`, verdict: outcomeVerdict(grade), steps: trace.steps, text: (n) => pieceOf(trace.tokens[n])})), this.steps);
      facts.append(fact(new Set(this.traced.map(({trace}) => trace.steps.join())).size, "distinct orders"));
      const some = this.traced.length < samples.length ? ` (${this.traced.length} of ${samples.length} samples; \`twotemp view\` has all)` : "";
      this.node.append(make("h3", {class: "small"}, `order: samples ↓ positions →${some}`), this.map.node, make("div", {class: "scale"}, "first", make("b"), "last"));
    }
    this.shown = make("div", {class: "sample"});
    this.node.append(this.shown, make("h3", {class: "small"}, "where texts fork"),
      make("div", {class: "tree", role: "group", "aria-label": "Where texts fork", tabindex: 0}, forkTree(texts, samples.length, (n) => this.choose(n))));
    // As the link says, else a right one: that is what a reader looks for.
    const linked = samples.findIndex(({index}) => String(index) === state[`sample-${this.side}`]), passed = samples.findIndex(({grade}) => grade?.[0] === "passed");
    this.show(linked >= 0 ? linked : Math.max(0, passed));
  }
  choose(n) {
    history.replaceState(null, "", address({[`sample-${this.side}`]: this.samples[n].index}));
    recall();
    this.show(n);
  }
  show(n) {
    const {index, text, grade, nfe, reward, trace} = this.samples[n], verdict = outcomeVerdict(grade);
    this.chosen = n;
    this.list.mark(n);
    const step = (by, label) => {
      const button = make("button", {type: "button", "aria-label": label}, by < 0 ? "←" : "→");
      button.addEventListener("click", () => this.choose((n + by + this.samples.length) % this.samples.length));
      return button;
    };
    const why = grade ? [make("dt", {}, "verdict"), make("dd", {}, sign(verdict), ` ${grade[0]}`), make("dt", {}, "answer"), make("dd", {}, grade[1] ?? "none found"),
      ...(grade[2] ? [make("dt", {}, "found by"), make("dd", {}, grade[2])] : []), ...(grade[3] ? [make("dt", {}, "reason"), make("dd", {class: "reason"}, grade[3])] : [])] : [make("dt", {}, "verdict"), make("dd", {}, "not graded yet")];
    if (reward !== undefined) why.push(make("dt", {}, "reward"), make("dd", {}, reward === null ? "none: it could not be graded" : String(+reward.toPrecision(4))));
    this.shown.replaceChildren(make("div", {class: "which"}, step(-1, "previous sample"), make("h3", {}, `sample ${index}`), step(1, "next sample"), make("span", {class: "nfe"}, `${nfe} NFE`)),
      make("dl", {class: "why"}, ...why));
    if (!trace) { this.shown.append(make("pre", {class: "raw", tabindex: 0}, text)); return; }
    const place = this.traced.findIndex((one) => one.n === n);
    this.map.show(place, `sample ${index} ${verdict}`);
    this.shown.append(this.replay(trace), make("details", {}, make("summary", {}, "raw text"), make("pre", {class: "raw", tabindex: 0}, text)));
  }
  // Tokens, colored by step, confidence or entropy, with a slider over the steps.
  replay(trace) {
    const strip = new TokenStrip(cellsOf(trace), {fork: FORK}), last = Math.max(1, ...trace.steps) + 1;
    const slider = make("input", {type: "range", min: 0, max: last, value: last, "aria-label": "Step"}), clock = make("output");
    const show = () => { clock.textContent = `step ${slider.value} of ${last}`; strip.show(+slider.value, last); };
    slider.addEventListener("input", show);
    strip.nodes.forEach(({cell, node}) => { node.title = cell.step < 0 ? "never written" : `step ${cell.step + 1}, confidence ${cell.confidence.toFixed(3)}, entropy ${cell.entropy.toFixed(2)} nats`; });
    const color = chooser(`color-${this.side}`, "color", [["step", "step"], ["confidence", "confidence"], ["entropy", "entropy at commit"]], "step", (name) => { strip.color = name; show(); });
    show();
    return make("div", {}, make("div", {class: "replay"}, slider, clock, color), make("div", {class: "tokens"}, ...strip.parts),
      strip.nodes.some(({fork}) => fork) ? make("p", {class: "note"}, "underlined: forks, written at an entropy of at least that of a fair coin") : "");
  }
}

// A line of squares per policy: the verdict of every sample, in order.
const ribbon = (question, {n, name}) => {
  const verdicts = of(question, n) ?? "", canvas = make("canvas", {width: Math.max(1, verdicts.length), height: 1, role: "img", "aria-label": `${name}: ${count(verdicts, "+")} of ${graded(verdicts)} right`});
  const pen = canvas.getContext("2d"), palette = getComputedStyle(document.documentElement);
  [...verdicts].forEach((verdict, x) => { pen.fillStyle = palette.getPropertyValue({"+": "--right", "-": "--wrong", "!": "--wrong"}[verdict] ?? "--mask"); pen.fillRect(x, 0, 1, 1); });
  return make("tr", {}, make("th", {scope: "row"}, name), make("td", {}, canvas), make("td", {class: "number"}, `${count(verdicts, "+")}/${graded(verdicts)}`));
};
// How often each policy's samples have a text, such as their answer: a row per text, a column per policy.
const tally = (title, column, samples, policies, textOf, none = null) => {
  const count = (some, text) => some.filter((sample) => textOf(sample) === text).length, all = samples.flat();
  const found = distinct(all.map(textOf), (_, n) => outcomeVerdict(all[n].grade));
  const rows = found.map(({text, verdict}) => [{text: `${{right: "\u2713", wrong: "\u2717"}[verdict] ?? ""} ${text}`, value: text}, ...samples.map((some) => count(some, text))]);
  if (none) rows.push([{text: none, value: "\uffff"}, ...samples.map((some) => count(some, null))]);
  return make("details", {class: "by-policy"}, make("summary", {}, `${title} by policy: ${found.length} distinct${found.length ? `, most often ${found[0].text.slice(0, 60)}` : ""}`), sortable([column, ...policies.map(({name}) => name)], rows, title));
};
const tallies = (chunk, policies) => {
  const samples = policies.map(({n}) => samplesOf(chunk, n));
  const answers = tally("answers", "answer", samples, policies, ({grade}) => grade?.[1] ?? null, "no answer found");
  const reasonOf = ({grade}) => grade?.[3] || null;
  return samples.flat().some(reasonOf) ? [answers, tally("reasons against samples", "reason", samples, policies, reasonOf)] : [answers];
};
const spelled = (value) => typeof value === "string" ? value : JSON.stringify(value);

async function drawQuestion() {
  const n = data.questions.findIndex((one) => one.id === state.question && one.task === state.task);
  const box = $("#part-question");
  if (n < 0) return box.replaceChildren(make("p", {}, `The run has no question ${state.question}.`));
  const question = data.questions[n], wanted = location.hash, chunk = await source.question(n);
  if (location.hash !== wanted) return;
  const policies = data.policies.map((policy, at) => ({...policy, n: at})).filter((policy) => policy.n in question.verdicts);
  const rows = listed(), at = rows.findIndex((one) => one.n === n);
  const neighbor = (by, text) => { const next = rows[at + by]; return next && at >= 0 ? make("a", {href: address({question: next.id, task: next.task, "sample-a": "", "sample-b": ""})}, text) : make("span", {class: "off"}, text); };
  const reference = Object.entries(chunk.reference ?? {}).flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, spelled(value))]);
  box.replaceChildren(
    make("nav", {class: "between", "aria-label": "Questions"}, neighbor(-1, "← previous"), make("a", {href: address({question: null})}, "all questions"), neighbor(1, "next →")),
    make("section", {class: "card"}, make("h2", {}, question.id), make("pre", {class: "prompt", tabindex: 0}, question.prompt ?? "The text of this question is not stored in the run."),
      ...(reference.length ? [make("h3", {class: "small"}, "reference"), make("dl", {class: "reference"}, ...reference)] : []),
      make("h3", {class: "small"}, "verdicts, sample by sample"), make("table", {class: "ribbons"}, make("tbody", {}, ...policies.map((policy) => ribbon(question, policy)))), ...tallies(chunk, policies)),
    make("div", {class: "sides"}, ...(policies.length > 1 ? ["a", "b"] : ["a"]).map((side) => new Side(side, chunk, policies).node)));
}
