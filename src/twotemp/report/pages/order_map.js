// When each position of each sample was written: a row per sample, a column per position, and who was right.
class OrderMap {
  constructor(name, choose) {
    this.count = 0; this.at = 0;
    this.when = make("canvas", {class: "when"});
    this.verdicts = make("canvas", {class: "verdicts", width: 1});
    this.mark = make("i");
    this.node = make("div", {class: "map", tabindex: 0, role: "slider", "aria-orientation": "vertical", "aria-label": name, "aria-valuemin": 0, "aria-valuenow": 0}, this.when, this.verdicts, this.mark);
    const go = (n) => { if (this.count) choose(Math.min(this.count - 1, Math.max(0, n))); };
    this.node.addEventListener("click", (event) => {
      const box = this.node.getBoundingClientRect();
      go(Math.floor((event.clientY - box.top) / box.height * this.count));
    });
    this.node.addEventListener("keydown", (event) => {
      const to = {ArrowUp: this.at - 1, ArrowDown: this.at + 1, Home: 0, End: this.count - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      go(to);
    });
  }
  // rows: the step at which each position was written (null: not yet, below 0: never), and a verdict if there is one.
  draw(rows, steps) {
    this.count = rows.length;
    this.node.setAttribute("aria-valuemax", Math.max(0, rows.length - 1));
    const wide = Math.max(1, ...rows.map((row) => row.steps.length)), pen = this.when.getContext("2d");
    this.when.width = wide;
    this.when.height = this.verdicts.height = Math.max(1, rows.length);
    rows.forEach((row, y) => row.steps.forEach((step, x) => {
      if (step === null || step < 0) return;
      pen.fillStyle = ramp(share(step, steps));
      pen.fillRect(x, y, 1, 1);
    }));
    this.verdicts.hidden = !rows.some((row) => row.verdict);
    const ink = this.verdicts.getContext("2d"), palette = getComputedStyle(document.documentElement);
    rows.forEach((row, y) => {
      if (!row.verdict) return;
      ink.fillStyle = palette.getPropertyValue(`--${row.verdict}`);
      ink.fillRect(0, y, 1, 1);
    });
  }
  show(n, text) {
    this.at = n;
    this.node.setAttribute("aria-valuenow", n);
    this.node.setAttribute("aria-valuetext", text);
    this.mark.style.top = `${100 * n / this.count}%`;
    this.mark.style.height = `${100 / this.count}%`;
  }
}
