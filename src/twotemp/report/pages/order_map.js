// When each position of each sample was written: a row per sample, a column per position, and who was right. The
// pointer reads a position: its token and its step.
class OrderMap {
  constructor(name, choose) {
    this.count = 0; this.at = 0;
    this.when = make("canvas", {class: "when"});
    this.verdicts = make("canvas", {class: "verdicts", width: 1});
    this.mark = make("i");
    this.tip = make("span", {class: "tip", hidden: ""});
    this.rows = [];
    this.node = make("div", {class: "map", tabindex: 0, role: "slider", "aria-orientation": "vertical", "aria-label": name, "aria-valuemin": 0, "aria-valuenow": 0}, this.when, this.verdicts, this.mark, this.tip);
    const go = (n) => { if (this.count) choose(Math.min(this.count - 1, Math.max(0, n))); };
    this.node.addEventListener("click", (event) => {
      const box = this.node.getBoundingClientRect();
      go(Math.floor((event.clientY - box.top) / box.height * this.count));
    });
    this.node.addEventListener("pointermove", (event) => this.point(event));
    this.node.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.node.addEventListener("keydown", (event) => {
      const to = {ArrowUp: this.at - 1, ArrowDown: this.at + 1, Home: 0, End: this.count - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      go(to);
    });
  }
  // rows: the step at which each position was written (null: not yet, below 0: never), a verdict if there is one, the
  // row's name and a function from a column to the text that stands there.
  draw(rows, steps) {
    this.rows = rows;
    this.count = rows.length;
    this.node.setAttribute("aria-valuemax", Math.max(0, rows.length - 1));
    const wide = Math.max(1, ...rows.map((row) => row.steps.length)), pen = this.when.getContext("2d");
    this.when.width = wide;
    this.when.height = this.verdicts.height = Math.max(1, rows.length);
    const places = new Map();  // by step: setting a colour takes longer than filling a rectangle
    rows.forEach((row, y) => row.steps.forEach((step, x) => {
      if (step === null || step < 0) return;
      if (!places.has(step)) places.set(step, []);
      places.get(step).push([x, y]);
    }));
    for (const [step, some] of places) {
      pen.fillStyle = ramp(share(step, steps));
      for (const [x, y] of some) pen.fillRect(x, y, 1, 1);
    }
    this.verdicts.hidden = !rows.some((row) => row.verdict);
    const ink = this.verdicts.getContext("2d"), palette = getComputedStyle(document.documentElement);
    rows.forEach((row, y) => {
      if (!row.verdict) return;
      ink.fillStyle = palette.getPropertyValue(`--${row.verdict}`);
      ink.fillRect(0, y, 1, 1);
    });
  }
  // Say what was written under the pointer, and when.
  point({clientX, clientY}) {
    const map = this.when.getBoundingClientRect(), box = this.node.getBoundingClientRect();
    const row = this.rows[Math.floor((clientY - map.top) / map.height * this.count)];
    const column = Math.floor((clientX - map.left) / map.width * this.when.width), step = row?.steps[column];
    this.tip.hidden = step === undefined;
    if (this.tip.hidden) return;
    this.tip.replaceChildren(make("b", {}, step === null ? "masked" : step < 0 ? "never written" : boxed(row.text(column))),
      step === null || step < 0 ? "" : ` step ${step + 1}`, make("small", {}, `position ${column}, ${row.name}`));
    this.tip.style.left = `${Math.max(0, Math.min(box.width - this.tip.offsetWidth, clientX - box.left + 12))}px`;
    this.tip.style.top = `${clientY - box.top + 14}px`;
  }
  show(n, text) {
    this.at = n;
    this.node.setAttribute("aria-valuenow", n);
    this.node.setAttribute("aria-valuetext", text);
    this.mark.style.top = `${100 * n / this.count}%`;
    this.mark.style.height = `${100 / this.count}%`;
  }
}
