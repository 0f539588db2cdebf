const NAMES = {t_pos: "Tpos", threshold: "λ", entropy_bound: "γ", kl_bound: "ε", k: "K"};
const number = (value) => value === "inf" ? Infinity : +value;
const shown = (value) => number(value) === Infinity ? "∞" : String(+(+value).toPrecision(3));
const plain = (value) => number(value) === Infinity ? "inf" : String(value);

// T_pos on the slider: 0, then three decades below 1 and two above, then infinity.
const heat = (place) => place <= 0 ? 0 : place >= 100 ? "inf" : +(10 ** ((place - 60) / 20)).toPrecision(2);
const placed = (value) => number(value) === Infinity ? 100 : +value <= 0 ? 0 : Math.min(99, Math.max(1, Math.round(60 + 20 * Math.log10(value))));

// What stands at a position before a step: the last that was written there, unless it became a mask again.
const written = (cell, step = Infinity) => {
  const last = cell.filter((one) => one.step < step).at(-1);
  return last && last.text !== null ? last : null;
};
const writes = (cell) => cell.filter((one) => one.text !== null).length;
// The same as a cell of a `TokenStrip`.
const asCell = (commits) => {
  const last = commits.at(-1), done = last && last.text !== null;
  const before = (done ? commits.slice(0, -1) : commits).map(({step, text, noise}) => [step, text, noise]);
  return {text: done ? last.text : "", step: done ? last.step : Infinity, confidence: last?.surely, ...(before.length ? {before} : {})};
};

const PORTFOLIO = "portfolio", ENTRIES = /\+(?=\s*(?:\d+\s*\*\s*)?[A-Za-z])/;  // between policies; not the plus of 1e+6

class Panel {
  constructor(side, spec) {
    this.side = side; this.rows = []; this.grades = new Map(); this.chosen = 0; this.step = 0; this.timer = null; this.due = false; this.follow = true;
    this.policy = make("select", {"aria-label": `Policy ${side.toUpperCase()}`}, ...Object.keys(about.policies).map((p) => make("option", {value: p}, p.toUpperCase())), ...(source.live ? [] : [make("option", {value: PORTFOLIO}, PORTFOLIO)]));
    this.controls = make("div", {class: "controls"});
    this.formula = make("p", {class: "formula"});
    this.canvas = make("div", {class: "canvas", role: "group", "aria-label": "Canvas"});
    this.play = make("button", {type: "button", "aria-label": "Replay"}, "▶");
    this.slider = make("input", {type: "range", min: 0, max: 1, step: 1, "aria-label": "Step of the sample"});
    this.clock = make("output");
    this.map = new OrderMap(`Sample of policy ${side.toUpperCase()}`, (n) => { this.choose(n); this.start(); });
    this.which = make("h2", {class: "small"});
    this.tree = make("div", {class: "tree", role: "group", "aria-label": "Where texts fork", tabindex: 0});
    this.list = new AnswerList((n) => { this.choose(n); this.start(); });
    this.facts = make("p", {class: "facts"});
    this.node = make("section", {class: "card", "aria-label": `Policy ${side.toUpperCase()}`}, this.controls, this.formula, this.which, this.canvas,
      make("div", {class: "replay"}, this.play, this.slider, this.clock),
      make("div", {class: "halves"},
        make("div", {}, make("h2", {class: "small"}, "order: samples ↓ positions →"), this.map.node,
          make("div", {class: "scale"}, "first", make("b"), "last")),
        make("div", {}, make("h2", {class: "small"}, "distinct texts"), this.list.node)),
      this.facts, make("h2", {class: "small forking"}, "where texts fork"), this.tree);
    this.policy.addEventListener("change", () => { this.parameters({}); run(); });
    this.slider.addEventListener("keydown", () => this.stop());  // Home at step 0 changes nothing, but ends a replay
    this.slider.addEventListener("input", () => { this.stop(); this.follow = false; this.show(+this.slider.value); });
    this.play.addEventListener("click", () => this.timer ? this.stop() : this.start());
    const [name, rest] = [spec.split(":")[0], spec.split(":")[1] || ""], portfolio = !source.live && ENTRIES.test(spec);
    this.spelling = portfolio ? spec : "lc + tlc:t_pos=0.5";
    this.policy.value = portfolio ? PORTFOLIO : name in about.policies ? name : "tct";
    this.parameters(Object.fromEntries(rest.split(",").filter(Boolean).map((part) => part.split("="))));
  }

  parameters(given) {
    const preset = about.policies[this.policy.value];
    this.values = {};
    this.controls.replaceChildren(make("label", {}, "policy", this.policy));
    if (!preset) {
      const input = make("input", {type: "text", size: 32, value: this.spelling});
      input.addEventListener("change", () => { this.spelling = input.value; run(); });
      this.controls.append(make("label", {}, "policies in the order of the samples", input));
      this.formula.textContent = "Each sample by the policy at its place; the last policy draws all that follow. With counts: 3*ct + tct.";
      return;
    }
    for (const name of [...preset.parameters].sort((x, y) => (y === "t_pos") - (x === "t_pos"))) {
      this.values[name] = given[name] ?? preset.defaults[name];
      if (name === "t_pos") {
        // A slider for the hand, a box for an exact number; "inf" is one.
        const slider = make("input", {type: "range", min: 0, max: 100, step: 1, "aria-label": "T pos, slider"});
        const box = make("input", {class: "exact", inputmode: "decimal", pattern: "inf|∞|[0-9]*[.]?[0-9]+(e-?[0-9]+)?", title: "a number of at least 0, or inf"});
        const say = () => { box.value = shown(this.values.t_pos); slider.setAttribute("aria-valuetext", `T pos ${shown(this.values.t_pos)}`); };
        slider.value = placed(this.values.t_pos);
        slider.addEventListener("input", () => { this.values.t_pos = heat(+slider.value); say(); if (source.live) run(); });
        if (!source.live) slider.addEventListener("change", run);
        box.addEventListener("change", () => {
          if (!box.reportValidity() || box.value === "") return say();
          this.values.t_pos = ["inf", "∞"].includes(box.value) ? "inf" : +box.value;
          slider.value = placed(this.values.t_pos);
          say();
          run();
        });
        say();
        this.controls.append(make("div", {class: "heat"}, make("label", {class: "number"}, make("span", {}, "T", make("sub", {}, "pos")), box), slider));
      } else {
        const input = make("input", {type: "number", step: "any", min: 0, value: plain(this.values[name])});
        input.addEventListener("change", () => { if (input.value !== "") this.values[name] = +input.value; run(); });
        this.controls.append(make("label", {class: `number of-${name}`}, NAMES[name] || name.replace("_", " "), input));
      }
    }
    this.formula.textContent = preset.formula;
  }

  get spec() {
    const preset = about.policies[this.policy.value];
    if (!preset) return this.spelling;
    const changed = Object.entries(this.values).filter(([name, value]) => plain(value) !== plain(preset.defaults[name]));
    return this.policy.value + (changed.length ? ":" + changed.map(([name, value]) => `${name}=${plain(value)}`).join(",") : "");
  }
  get title() { return this.policy.value === PORTFOLIO ? this.spelling : this.policy.value.toUpperCase() + ("t_pos" in this.values ? ` ${shown(this.values.t_pos)}` : ""); }

  begin(n, length) {
    this.stop();
    this.rows = Array.from({length: n}, () => ({cells: Array.from({length}, () => []), steps: 0, text: null, nfe: 0}));
    this.grades = new Map(); this.chosen = 0; this.follow = true;
    this.tree.replaceChildren();
    this.draw();
  }
  take(choice) {
    const row = this.rows[choice.index], ours = choice.twotemp || {};
    const noise = new Map(ours.noise || []);
    for (const [place, text, surely] of ours.commits || []) {
      // On a canvas of random tokens a step decides again on what stands: only a change is something written.
      if (text === null || row.cells[place].at(-1)?.text !== text) row.cells[place].push({text, surely, step: ours.step, noise: noise.get(place)});
    }
    if (ours.commits) row.steps = ours.step + 1;
    if (choice.finish_reason) { row.text = choice.delta ? choice.delta.content : choice.text; row.nfe = ours.nfe; }
    if (!this.due) { this.due = true; requestAnimationFrame(() => { this.due = false; this.draw(); }); }
  }
  get last() { return Math.max(1, ...this.rows.map((row) => row.steps)); }

  draw() {
    this.map.draw(this.rows.map((row, n) => ({name: `sample ${n}`, verdict: this.verdict(row.text), steps: row.cells.map((cell) => written(cell)?.step ?? null), text: (place) => written(row.cells[place]).text})), this.last);
    this.answers();
    this.choose(this.chosen, true);
  }

  verdict(text) {
    const outcome = this.grades.get(text)?.outcome;
    return !outcome || outcome === "ungraded" ? "" : outcome === "passed" ? "right" : "wrong";
  }

  answers() {
    const found = this.found = distinct(this.rows.map((row) => row.text), (text) => this.verdict(text), (text) => this.grades.get(text)?.detail);
    this.list.draw(found);
    const done = this.rows.filter((row) => row.text !== null);
    this.facts.replaceChildren();
    if (!done.length) return;
    this.facts.append(fact(`${found.length} of ${done.length}`, "texts distinct"), fact(bits(found).toFixed(2), "bits of entropy"),
      fact((done.reduce((sum, row) => sum + row.nfe, 0) / done.length).toFixed(1), "NFE, mean"));
    const again = done.reduce((sum, row) => sum + row.cells.reduce((more, cell) => more + Math.max(0, writes(cell) - 1), 0), 0);
    if (again) this.facts.append(fact((again / done.length).toFixed(1), "rewritten, mean"));
    if (this.grades.size) {
      const kinds = new Set([...this.grades.values()].filter((g) => g.outcome === "passed").map((g) => g.answer));
      this.facts.append(fact(this.right, "right"), fact(kinds.size, kinds.size === 1 ? "right answer" : "distinct right answers"));
    }
  }
  settle() {
    this.draw();
    this.tree.replaceChildren(forkTree(this.found, this.rows.length, (n) => { this.choose(n); this.start(); }));
  }
  get right() { return this.rows.filter((row) => this.grades.get(row.text)?.outcome === "passed").length; }

  choose(n, again = false) {
    const row = this.rows[n];
    if (!row) return;
    if (!again) { this.stop(); this.follow = true; }
    this.chosen = n;
    this.which.textContent = `sample ${n}${row.text === null ? ", live" : ""}`;
    this.map.show(n, `sample ${n}: ${row.text ?? "being written"} ${this.verdict(row.text)}`);
    this.list.mark(n);
    this.strip = new TokenStrip(row.cells.map((commits) => asCell(commits)), {boxes: true});
    this.canvas.replaceChildren(...this.strip.parts);
    this.slider.max = Math.max(1, row.steps);
    this.show(this.follow && !this.timer ? row.steps : Math.min(this.step, row.steps));
  }
  show(step) {
    const row = this.rows[this.chosen];
    if (!row) return;
    this.step = step;
    this.slider.value = step;
    this.slider.setAttribute("aria-valuetext", `step ${step} of ${row.steps}`);
    this.clock.textContent = `step ${step} of ${row.steps}`;
    this.strip.show(step, this.last);
    this.strip.nodes.forEach(({node}, place) => {
      const cell = row.cells[place], now = written(cell, step);
      const noise = cell.filter((one) => one.step < step).at(-1)?.noise;
      node.title = noise !== undefined ? `position ${place}, a random token` : now ? `position ${place}, step ${now.step + 1}, confidence ${now.surely.toFixed(2)}${writes(cell) > 1 ? `, written ${writes(cell)} times` : ""}` : "";
    });
  }
  start() {
    const row = this.rows[this.chosen];
    if (!row) return;
    this.stop();
    this.show(0);
    this.play.textContent = "❚❚";
    this.play.setAttribute("aria-label", "Pause");
    this.timer = setInterval(() => { this.show(this.step + 1); if (this.step >= row.steps) this.stop(); }, pace(row.steps, 3000, 300));
  }
  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "▶";
    this.play.setAttribute("aria-label", "Replay");
  }
}
