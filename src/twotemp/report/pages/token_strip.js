// The tokens of one sample. A cell is {text, step, special, confidence, entropy, before}: `step` is when its token was
// written (undefined: given by the prompt, Infinity: not yet, below 0: never), `before` lists [step, text or null] of
// what stood there earlier; null is a mask, or, with a third entry, that random token.
const earlier = (cell, done) => (cell.before || []).filter(([step]) => step < done).at(-1);
const standing = (cell, done) => cell.step >= 0 && cell.step < done ? cell.text : earlier(cell, done)?.[1] ?? null;
const noiseAt = (cell, done) => standing(cell, done) === null ? earlier(cell, done)?.[2] : undefined;
const lastWrite = (cell, done) => cell.step < done || !cell.before ? cell.step : earlier(cell, done)?.[0] ?? 0;
// A token's text inside its box. A line break at its end stands after the box.
const face = (text, special) => special ? "▪" : text.replace(/^ /, "").replace(/\n/g, "⏎\n").replace(/\n$/, "").replace(/\t/g, "⇥") || "∅";
const boxed = (text) => text.trim().replace(/\n/g, "⏎") || "▪";

// What a color says: the step of a token, or how sure the model was of it when it was written.
const COLORS = {
  step: (cell, done, last) => Math.min(1, share(lastWrite(cell, done), last)),
  confidence: (cell) => cell.confidence ?? 0,
  entropy: (cell) => Math.min(1, (cell.entropy ?? 0) / 2),
};

class TokenStrip {
  // boxes: every token in a box of its own, without the text's white space; fork: nats from which a token is marked.
  constructor(cells, {boxes = false, fork = Infinity} = {}) {
    this.cells = cells; this.boxes = boxes; this.color = "step";
    this.nodes = [];
    this.parts = [];
    let given = "";
    const flush = () => { if (given) this.parts.push(make("span", {class: "given"}, given)); given = ""; };
    for (const cell of cells) {
      if (cell.step === undefined) { given += cell.special ? "" : cell.text; continue; }
      flush();
      const marked = cell.step >= 0 && cell.entropy >= fork;
      const node = make("span", {class: "tok" + (marked ? " fork" : "") + (cell.special && !boxes ? " end" : "")}, this.face(cell, cell.text, cell.special));
      const space = !boxes && /^ /.test(cell.text) && this.nodes.length;
      this.parts.push(...(space ? [" "] : []), node, ...(!boxes && /\n$/.test(cell.text) ? ["\n"] : []));
      this.nodes.push({cell, node, fork: marked});
    }
    flush();
  }
  face(cell, text, special) { return this.boxes ? boxed(special ? "" : text) : face(text, special); }
  // Show what stood there after `done` of `last` steps.
  show(done, last) {
    for (const {cell, node} of this.nodes) {
      const stands = standing(cell, done), noise = noiseAt(cell, done), final = cell.step < done;
      node.classList.toggle("on", stands !== null);
      node.classList.toggle("noise", noise !== undefined);
      const changed = cell.before?.some(([step, , random]) => step === done - 1 && random === undefined);
      node.classList.toggle("now", done < last && (cell.step === done - 1 || !!changed));
      if (cell.before) node.textContent = this.face(cell, final ? cell.text : stands ?? noise ?? cell.text, final && cell.special);
      tint(node, COLORS[this.color](cell, done, last));
    }
  }
}
