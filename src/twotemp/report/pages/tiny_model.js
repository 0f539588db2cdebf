// `tiny`, a bidirectional Llama, in float32. Matrix products run in WebAssembly (`matmul.wat`), the rest is plain
// JavaScript on the same memory. The weights are one array, in the order in which `take` reads them.
const TILE = 8;  // rows computed together, so that activations stay in the cache
class TinyModel {
  constructor(config, weights, wasm) {
    const {width, heads, layers, hidden, vocab, length} = this.config = config;
    const tokens = TILE * length, head = Math.ceil(vocab / 8) * 8;
    const scratch = tokens * (3 * width + 3 * width + 2 * hidden + hidden + head) + 64;
    this.memory = new WebAssembly.Memory({initial: Math.ceil(4 * (weights.length + scratch) / 65536) + 1});
    this.kernel = new WebAssembly.Instance(wasm, {host: {memory: this.memory}}).exports.matmul;
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
    this.headWidth = head;
    // Rotary angles in float32, as torch computes them.
    const half = width / heads / 2, f = Math.fround;
    this.cos = new Float32Array(length * half); this.sin = new Float32Array(length * half);
    for (let p = 0; p < length; p++) for (let i = 0; i < half; i++) {
      const angle = f(p * f(1 / f(config.theta ** f(i / half))));
      this.cos[p * half + i] = Math.cos(angle); this.sin[p * half + i] = Math.sin(angle);
    }
  }
  matmul(x, w, y, m, k, n) { this.kernel(x.byteOffset, w.byteOffset, y.byteOffset, (m + 3) & ~3, k, n); }
  normalize(x, weight, y, count) {
    const {width, epsilon} = this.config;
    for (let t = 0; t < count; t++) {
      let sum = 0;
      for (let i = 0; i < width; i++) sum += x[t * width + i] ** 2;
      const scale = 1 / Math.sqrt(sum / width + epsilon);
      for (let i = 0; i < width; i++) y[t * width + i] = x[t * width + i] * scale * weight[i];
    }
  }
  rotate(qkv, length, rows) {
    const {width, heads} = this.config, size = width / heads, half = size / 2;
    for (let t = 0; t < rows * length; t++) for (let part = 0; part < 2; part++) for (let h = 0; h < heads; h++) {
      const at = t * 3 * width + part * width + h * size, angle = (t % length) * half;
      for (let i = 0; i < half; i++) {
        const a = qkv[at + i], b = qkv[at + half + i], c = this.cos[angle + i], s = this.sin[angle + i];
        qkv[at + i] = a * c - b * s; qkv[at + half + i] = b * c + a * s;
      }
    }
  }
  attend(qkv, y, length, rows) {
    const {width, heads} = this.config, size = width / heads, scale = 1 / Math.sqrt(size), scores = new Float64Array(length);
    for (let row = 0; row < rows; row++) for (let h = 0; h < heads; h++) for (let q = 0; q < length; q++) {
      const from = (row * length + q) * 3 * width + h * size;
      let peak = -Infinity, total = 0;
      for (let k = 0; k < length; k++) {
        const to = (row * length + k) * 3 * width + width + h * size;
        let dot = 0;
        for (let i = 0; i < size; i++) dot += qkv[from + i] * qkv[to + i];
        scores[k] = dot * scale;
        if (scores[k] > peak) peak = scores[k];
      }
      for (let k = 0; k < length; k++) total += scores[k] = Math.exp(scores[k] - peak);
      const out = (row * length + q) * width + h * size;
      for (let i = 0; i < size; i++) y[out + i] = 0;
      for (let k = 0; k < length; k++) {
        const weight = scores[k] / total, value = (row * length + k) * 3 * width + 2 * width + h * size;
        for (let i = 0; i < size; i++) y[out + i] += weight * qkv[value + i];
      }
    }
  }
  // Return the logits at the wanted positions of each row, [positions * vocab] each. All rows have the same length.
  forward(rows, wanted) {
    const found = [];
    for (let at = 0; at < rows.length; at += TILE) found.push(...this.tile(rows.slice(at, at + TILE), wanted.slice(at, at + TILE)));
    return found;
  }
  tile(rows, wanted) {
    const {width, hidden, vocab} = this.config, length = rows[0].length, count = rows.length * length;
    const {x, h, y, qkv, gateUp, gated} = this;
    rows.forEach((row, r) => row.forEach((id, p) => x.set(this.embed.subarray(id * width, (id + 1) * width), (r * length + p) * width)));
    let live = count;  // behind the last attention only the wanted positions are computed
    this.layers.forEach((layer, n) => {
      this.normalize(x, layer.norm1, h, count);
      this.matmul(h, layer.qkv, qkv, count, width, 3 * width);
      this.rotate(qkv, length, rows.length);
      this.attend(qkv, h, length, rows.length);
      if (n === this.layers.length - 1) {
        live = 0;
        wanted.forEach((positions, r) => positions.forEach((p) => {
          const from = (r * length + p) * width;  // never before `live`: rows and positions are in order
          x.copyWithin(live * width, from, from + width); h.copyWithin(live * width, from, from + width);
          live += 1;
        }));
      }
      this.matmul(h, layer.out, y, live, width, width);
      for (let i = 0; i < live * width; i++) x[i] += y[i];
      this.normalize(x, layer.norm2, h, live);
      this.matmul(h, layer.gateUp, gateUp, live, width, 2 * hidden);
      for (let t = 0; t < live; t++) for (let i = 0; i < hidden; i++) {
        const gate = gateUp[t * 2 * hidden + i];
        gated[t * hidden + i] = gate / (1 + Math.exp(-gate)) * gateUp[t * 2 * hidden + hidden + i];
      }
      this.matmul(gated, layer.down, y, live, hidden, width);
      for (let i = 0; i < live * width; i++) x[i] += y[i];
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
