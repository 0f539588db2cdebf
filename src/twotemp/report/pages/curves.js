// A chart of curves with their intervals. Hover, touch or the arrow keys move a cursor that reads all curves; the
// legend hides and shows them. A series is {name, color, x, y, low, high, points}: `low` and `high` may be missing or
// hold null, `points` draws separate points.
const MOST_BANDS = 6;  // of more curves only the cursor tells the intervals: their areas would hide each other
class Chart {
  constructor({title, x, y, series, height = 240}, before = null) {
    Object.assign(this, {title, x, y, series, height, at: null, log: x.log ?? false});
    this.hiddenNames = new Set();
    // A chart of a run that has grown stays as its reader has set it.
    if (before) Object.assign(this, {at: before.at, log: before.log, hiddenNames: before.hiddenNames});
    this.svg = make("svg", {role: "img"});
    this.read = make("output", {class: "reading", "aria-live": "polite"});
    this.box = make("div", {class: "plot", tabindex: 0, role: "slider", "aria-label": `${title}: cursor along ${x.label}`}, this.svg);
    this.legend = make("div", {class: "legend"}, ...(series.length > 1 ? series.map((one) => this.key(one)) : []));
    const scale = make("button", {type: "button", class: "quiet", "aria-pressed": String(this.log)}, "log axis");
    scale.addEventListener("click", () => { this.log = !this.log; scale.setAttribute("aria-pressed", String(this.log)); this.draw(); });
    const places = series.flatMap((one) => one.x), wide = Math.min(...places) > 0 && Math.max(...places) >= 16 * Math.min(...places);
    this.node = make("figure", {class: "chart"}, make("figcaption", {class: "small"}, title), this.box, this.read, this.legend);
    if (this.log || wide) this.legend.append(scale);
    this.box.addEventListener("pointermove", (event) => this.point(event.clientX));
    this.box.addEventListener("pointerdown", (event) => this.point(event.clientX));
    this.box.addEventListener("keydown", (event) => {
      const places = this.places, now = places.indexOf(this.at);
      const to = {ArrowRight: now + 1, ArrowLeft: now < 0 ? places.length - 1 : now - 1, Home: 0, End: places.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.cursor(places[Math.min(places.length - 1, Math.max(0, to))]);
    });
    new ResizeObserver(() => this.draw()).observe(this.node);
    this.draw();
  }
  key(one) {
    const button = make("button", {type: "button", class: "key", "aria-pressed": String(!this.hiddenNames.has(one.name))}, make("i"), one.name);
    button.style.setProperty("--c", one.color);
    button.addEventListener("click", () => {
      const hide = !this.hiddenNames.has(one.name);
      this.hiddenNames[hide ? "add" : "delete"](one.name);
      button.setAttribute("aria-pressed", String(!hide));
      this.draw();
    });
    return button;
  }
  get shown() { return this.series.filter((one) => !this.hiddenNames.has(one.name)); }
  get places() { return [...new Set(this.shown.flatMap((one) => one.x))].sort((a, b) => a - b); }
  format(value) { return value === null ? "–" : this.y.percent ? `${(100 * value).toFixed(1)} %` : String(+value.toPrecision(4)); }

  draw() {
    const wide = Math.max(220, this.box.clientWidth || 600) - 62, high = this.height - 40, shown = this.shown;
    const xs = shown.flatMap((one) => one.x), ys = shown.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]).filter((v) => v !== null);
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    let [y0, y1] = this.y.percent ? [0, 1] : [Math.min(0, ...ys), Math.max(...ys, 1e-9)];
    if (y1 - y0 < 1e-6) y1 = y0 + 1;  // all the same, up to rounding
    const bend = this.log && x0 > 0 ? Math.log : (value) => value;
    this.px = (value) => x1 > x0 ? wide * (bend(value) - bend(x0)) / (bend(x1) - bend(x0)) : wide / 2;
    this.py = (value) => high - high * (value - y0) / (y1 - y0 || 1);
    const whole = xs.every(Number.isInteger);
    const svg = make("svg", {viewBox: `-46 -12 ${wide + 62} ${this.height}`, role: "img", "aria-label": this.summary});
    for (const value of ticks(y0, y1, 4)) svg.append(make("line", {class: "axis", x1: 0, x2: wide, y1: this.py(value), y2: this.py(value)}),
      make("text", {x: -8, y: this.py(value) + 4, "text-anchor": "end"}, this.y.percent ? `${Math.round(100 * value)} %` : String(+value.toPrecision(3))));
    if (xs.length) for (const value of this.log && x0 > 0 ? doublings(x0, x1) : ticks(x0, x1, 6).filter((x) => !whole || Number.isInteger(x)))
      svg.append(make("text", {x: this.px(value), y: high + 18, "text-anchor": "middle"}, String(+value.toPrecision(4))));
    for (const one of shown) {
      const points = one.x.map((value, n) => ({x: this.px(value), y: one.y[n], low: one.low?.[n] ?? null, high: one.high?.[n] ?? null})).filter((p) => p.y !== null);
      const spans = points.filter((p) => p.low !== null && p.high !== null);
      const line = (some, edge) => some.map((p, n) => `${n ? "L" : "M"}${p.x.toFixed(1)},${this.py(p[edge]).toFixed(1)}`).join("");
      if (one.points) for (const p of spans) svg.append(this.styled(make("line", {class: "bar", x1: p.x, x2: p.x, y1: this.py(p.low), y2: this.py(p.high)}), one));
      else if (spans.length > 1 && shown.length <= MOST_BANDS) svg.append(this.styled(make("path", {class: "band", d: line(spans, "low") + line([...spans].reverse(), "high").replace("M", "L") + "Z"}), one));
      if (!one.points && points.length > 1) svg.append(this.styled(make("path", {class: "line", d: line(points, "y")}), one));
      else for (const p of points) svg.append(this.styled(make("circle", {cx: p.x, cy: this.py(p.y), r: one.points ? 4.5 : 3.5}), one));
    }
    for (const [name, value] of Object.entries({valuemin: x0, valuemax: x1, valuenow: this.at ?? x0})) this.box.setAttribute(`aria-${name}`, Number.isFinite(value) ? value : 0);
    this.rule = make("line", {class: "cursor", y1: -6, y2: high});
    svg.append(this.rule);
    this.svg.replaceWith(svg);
    this.svg = svg;
    this.cursor(this.at);
  }
  styled(node, one) { node.style.setProperty("--c", one.color); return node; }
  get summary() {
    return `${this.title}. ` + this.shown.map((one) => `${one.name}: ${this.format(one.y[0])} at ${one.x[0]}, ${this.format(one.y.at(-1))} at ${one.x.at(-1)}`).join("; ");
  }
  point(clientX) {
    const box = this.svg.getBoundingClientRect(), view = this.svg.viewBox.baseVal;
    const x = (clientX - box.left) / box.width * view.width + view.x;
    const nearest = this.places.reduce((best, value) => Math.abs(this.px(value) - x) < Math.abs(this.px(best) - x) ? value : best, this.places[0]);
    if (nearest !== undefined) this.cursor(nearest);
  }
  // Read every curve at `value`: where it has no point there, between its neighbors.
  cursor(value) {
    this.at = value;
    this.rule.style.display = value === null ? "none" : "";
    if (value === null) return this.read.replaceChildren(`${this.x.label} → move the cursor to read values`);
    for (const end of ["x1", "x2"]) this.rule.setAttribute(end, this.px(value));
    const said = this.shown.map((one) => {
      const n = one.x.indexOf(value), after = one.x.findIndex((x) => x > value);
      const exact = n >= 0, inside = after > 0 && !one.points;
      if (!exact && !inside) return null;
      const t = exact ? 0 : (value - one.x[after - 1]) / (one.x[after] - one.x[after - 1]);
      const of = (list) => { const [a, b] = exact ? [list?.[n], list?.[n]] : [list?.[after - 1], list?.[after]]; return a == null || b == null ? null : a + t * (b - a); };
      const [y, low, high] = [of(one.y), of(one.low), of(one.high)];
      if (y === null) return null;
      return this.styled(make("span", {class: "value"}, make("i"), `${one.name} `, make("b", {}, this.format(y)), low === null ? "" : ` (${this.format(low)} to ${this.format(high)})`), one);
    }).filter(Boolean);
    const place = String(+value.toPrecision(4));
    this.box.setAttribute("aria-valuetext", `${this.x.label} ${place}: ${said.map((node) => node.textContent).join("; ")}`);
    this.box.setAttribute("aria-valuenow", place);
    this.read.replaceChildren(make("b", {}, `${this.x.label} ${place}`), ...said);
  }
}
function ticks(from, to, count) {
  const raw = (to - from || 1) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const first = Math.ceil(from / step - 1e-9);
  return Array.from({length: Math.floor(to / step + 1e-9) - first + 1}, (_, n) => +((first + n) * step).toPrecision(12));
}
function doublings(from, to) {
  const base = from <= 1 ? 1 : 2 ** Math.ceil(Math.log2(from)), found = [];
  const factor = Math.log2(to / from) > 9 ? 4 : 2;
  for (let value = base; value <= to * 1.001; value *= factor) found.push(value);
  return found;
}
// pass@k = 1 - prod_{j<k} (1 - c / (n - j)), for k = 1 to n
function passes(n, right) {
  let miss = 1;
  return Array.from({length: n}, (_, j) => 1 - (miss *= Math.max(0, 1 - right / (n - j))));
}
