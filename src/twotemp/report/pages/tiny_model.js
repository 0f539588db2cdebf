// `tiny`, a bidirectional Llama, in float32. What is computed runs in WebAssembly (`tiny_kernels.wat`). The weights are
// one array, in the order in which `take` reads them.
const TILE = 8;  // rows computed together, so that activations stay in the cache
class TinyModel {
  constructor(config, weights, wasm) {
    const {width, heads, layers, hidden, vocab, length} = this.config = config;
    const tokens = TILE * length, head = Math.ceil(vocab / 8) * 8, half = width / heads / 2;
    if (half !== 16) throw new Error("the kernels are written for heads of 32 numbers");
    const scratch = tokens * (6 * width + 3 * hidden + head) + head * 3 * width + length * (2 * half + 1) + 64;
    this.memory = new WebAssembly.Memory({initial: Math.ceil(4 * (weights.length + scratch) / 65536) + 1});
    this.kernels = new WebAssembly.Instance(wasm, {host: {memory: this.memory}}).exports;
    let used = 0;
    const view = (size) => { const made = new Float32Array(this.memory.buffer, 4 * used, size); used += Math.ceil(size / 4) * 4; return made; };
    let read = 0;
    const take = (size) => { const made = view(size); made.set(weights.subarray(read, read += size)); return made; };
    this.embed = take(vocab * width);
    this.layers = Array.from({length: layers}, () => ({norm1: take(width), qkv: take(3 * width * width), out: take(width * width), norm2: take(width), gateUp: take(2 * width * hidden), down: take(hidden * width)}));
    this.norm = take(width);
    this.head = take(width * head);
    if (read !== weights.length) throw new Error("the weights do not fit the model");
    this.x = view(tokens * width); this.h = view(tokens * width); this.y = view(tokens * width);
    this.qkv = view(tokens * 3 * width); this.gateUp = view(tokens * 2 * hidden); this.gated = view(tokens * hidden); this.logits = view(tokens * head);
    this.scores = view(length + 4);
    this.headWidth = head;
    // Rotary angles in float32, as torch computes them: for each position cosines, then sines.
    const f = Math.fround;
    this.angles = view(length * 2 * half);
    for (let p = 0; p < length; p++) for (let i = 0; i < half; i++) {
      const angle = f(p * f(1 / f(config.theta ** f(i / half))));
      this.angles[p * 2 * half + i] = Math.cos(angle); this.angles[p * 2 * half + half + i] = Math.sin(angle);
    }
    // What the first layer makes of a token depends on nothing but its id: a table spares the product.
    this.first = view(head * 3 * width);
    this.normalize(this.embed, this.layers[0].norm1, this.h, vocab);
    this.matmul(this.h, this.layers[0].qkv, this.first, vocab, width, 3 * width);
  }
  matmul(x, w, y, m, k, n) { this.kernels.matmul(x.byteOffset, w.byteOffset, y.byteOffset, (m + 3) & ~3, k, n); }
  normalize(x, weight, y, count) { this.kernels.normalize(x.byteOffset, weight.byteOffset, y.byteOffset, count, 4 * this.config.width, this.config.epsilon); }
  add(x, y, size) { this.kernels.add(x.byteOffset, y.byteOffset, 4 * size); }
  // Return the logits at the wanted positions of each row, [positions * vocab] each. All rows have the same length.
  forward(rows, wanted) {
    const found = [];
    for (let at = 0; at < rows.length; at += TILE) found.push(...this.tile(rows.slice(at, at + TILE), wanted.slice(at, at + TILE)));
    return found;
  }
  tile(rows, wanted) {
    const {width, hidden, vocab} = this.config, length = rows[0].length, count = rows.length * length;
    const {kernels, x, h, y, qkv, gateUp, gated} = this;
    rows.forEach((row, r) => row.forEach((id, p) => x.set(this.embed.subarray(id * width, (id + 1) * width), (r * length + p) * width)));
    let live = count;  // behind the last attention only the wanted positions are computed
    this.layers.forEach((layer, n) => {
      if (n === 0) rows.forEach((row, r) => row.forEach((id, p) => qkv.set(this.first.subarray(id * 3 * width, (id + 1) * 3 * width), (r * length + p) * 3 * width)));
      else {
        this.normalize(x, layer.norm1, h, count);
        this.matmul(h, layer.qkv, qkv, count, width, 3 * width);
      }
      kernels.rotate(qkv.byteOffset, this.angles.byteOffset, length, rows.length, 4 * width);
      kernels.attend(qkv.byteOffset, h.byteOffset, this.scores.byteOffset, length, rows.length, 4 * width);
      if (n === this.layers.length - 1) {
        live = 0;
        wanted.forEach((positions, r) => positions.forEach((p) => {
          const from = (r * length + p) * width;  // never before `live`: rows and positions are in order
          x.copyWithin(live * width, from, from + width); h.copyWithin(live * width, from, from + width);
          live += 1;
        }));
      }
      this.matmul(h, layer.out, y, live, width, width);
      this.add(x, y, live * width);
      this.normalize(x, layer.norm2, h, live);
      this.matmul(h, layer.gateUp, gateUp, live, width, 2 * hidden);
      kernels.swiglu(gateUp.byteOffset, gated.byteOffset, live, 4 * hidden);
      this.matmul(gated, layer.down, y, live, hidden, width);
      this.add(x, y, live * width);
    });
    this.normalize(x, this.norm, h, live);
    this.matmul(h, this.head, this.logits, live, width, this.headWidth);
    let at = 0;
    return wanted.map((positions) => {
      const logits = new Float32Array(positions.length * vocab);
      positions.forEach((_, n) => logits.set(this.logits.subarray((at + n) * this.headWidth, (at + n) * this.headWidth + vocab), n * vocab));
      at += positions.length;
      return logits;
    });
  }
}
