// A decoding step of `twotemp.policies`, for rules with a budget or a threshold: draw a token for every mask (*what*),
// then choose the positions to commit (*where*). Numbers are rounded to float32 where the library's are.
const f32 = Math.fround;
const HOTTEST = 2 ** 1000, TINY = 1.1754943508222875e-38;

// exp(z - peak) in float32, 0 for forbidden tokens, and the sum; the logits are left alone.
function exponentials(z, peak, allowed, temperature) {
  const weights = new Float32Array(z.length);
  for (let v = 0; v < z.length; v++) if (allowed[v]) weights[v] = Math.exp(f32(f32(z[v] - peak) / temperature));
  return weights;
}
const sum = (weights) => { let total = 0; for (let v = 0; v < weights.length; v++) total += weights[v]; return total; };

// Draw from softmax(z / T_token) at one position; return the token and what the score needs to know of q.
function predict(logits, at, {vocab, allowed}, policy, needs, tToken, u) {
  const z = logits.subarray(at * vocab, (at + 1) * vocab);
  let peak = -Infinity, likeliest = 0;
  for (let v = 0; v < vocab; v++) if (allowed[v] && z[v] > peak) { peak = z[v]; likeliest = v; }
  let weights = exponentials(z, peak, allowed, 1), total = f32(sum(weights));
  let drawn = tToken > 0 ? exponentials(z, peak, allowed, f32(tToken)) : weights;
  if (policy.top_k > 0) drawn = keepTopK(drawn, policy.top_k);
  if (policy.top_p < 1) drawn = keepTopP(drawn, policy.top_p);
  const token = tToken > 0 ? inverseCdf(drawn, u) : likeliest, found = {token};
  if (policy.confidence === "drawn") {
    [weights, total] = [drawn, f32(sum(drawn))];
    found.log_confidence = f32(f32(Math.log(weights[token])) - f32(Math.log(total)));
    found.log_top = f32(f32(Math.log(Math.max(...weights))) - f32(Math.log(total)));
  } else {
    found.log_confidence = f32(f32(z[token] - peak) - f32(Math.log(total)));
    found.log_top = -f32(Math.log(total));
  }
  found.confidence = f32(Math.exp(found.log_confidence));
  if (needs.has("entropy") || needs.has("neg_entropy")) {
    let entropy = 0;
    for (let v = 0; v < vocab; v++) { const q = f32(weights[v] / total); if (q > 0) entropy -= q * Math.log(q); }
    found.entropy = f32(entropy);
    found.neg_entropy = -found.entropy;
  }
  if (needs.has("log_margin")) {
    let first = 0, second = 0;
    for (let v = 0; v < vocab; v++) if (weights[v] > first) { second = first; first = weights[v]; } else if (weights[v] > second) second = weights[v];
    found.log_margin = f32(Math.log(Math.max(TINY, f32(f32(first - second) / total))));
  }
  return found;
}
function inverseCdf(weights, u) {
  const target = Math.min(u, 1 - 2 ** -53) * sum(weights);
  let cdf = 0, last = 0;
  for (let v = 0; v < weights.length; v++) {
    if (weights[v] > 0) last = v;
    cdf += weights[v];
    if (cdf > target) return v;
  }
  return last;
}
function keepTopK(weights, k) {
  const least = [...weights].sort((a, b) => b - a)[Math.min(k, weights.length) - 1];
  return weights.map((w) => w >= least ? w : 0);
}
function keepTopP(weights, p) {
  const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]), total = f32(sum(weights)), kept = new Float32Array(weights.length);
  let before = 0;
  order.forEach((v, n) => { if (n === 0 || before < f32(p)) kept[v] = weights[v]; before = f32(before + f32(weights[v] / total)); });
  return kept;
}

// How many positions a step commits at least.
function budget(policy, masked, step, blockStep) {
  if (policy.steps > 0 && policy.schedule === "even") { const left = Math.max(1, policy.steps - blockStep); return Math.floor((masked + left - 1) / left); }
  if (policy.steps > 0 && policy.schedule === "dream") {
    const now = Math.min(step, policy.steps - 1), time = (at) => 1 - (1 - 1e-3) * at / policy.steps;
    return now === policy.steps - 1 ? masked : Math.max(1, Math.trunc(masked * (1 - time(now + 1) / time(now))));
  }
  return policy.k;
}

// Return the places in `drawn` to commit: the plain rule on scores perturbed by T_pos-scaled noise.
function choose(drawn, positions, policy, key, step, count) {
  const name = policy.first_score !== "same" && step === 0 ? policy.first_score : policy.score;
  const noise = policy.rule === "threshold" ? logistic : gumbel;
  const scores = drawn.map((one, n) => {
    const score = name === "position" ? -positions[n] : one[name];
    return policy.t_pos > 0 ? score + Math.min(policy.t_pos, HOTTEST) * noise(uniform(key, step, positions[n], POSITION)) : score;
  });
  const places = [...drawn.keys()], best = [...places].sort((a, b) => scores[b] - scores[a] || a - b);
  const above = (n) => policy.rule === "threshold" && (policy.inclusive ? scores[n] >= policy.threshold : scores[n] > policy.threshold);
  const ready = best.filter(above), others = (policy.fallback === "leftmost" ? places : best).filter((n) => !above(n));
  return [...ready, ...others].slice(0, Math.max(count, ready.length));
}

// AR costs the passes that write what comes before EOS, k tokens of a block at a time; all others every step.
const leftToRight = (policy) => policy.score === "position" && policy.rule === "budget" && policy.t_pos === 0 && !policy.steps;
const passesBefore = (end, width, k) => { let sum = 0; for (let at = 0; at < end; at += width) sum += Math.ceil(Math.min(width, end - at) / k); return sum; };

class Sampler {
  // setup: {config, mask, forbidden, eos}
  constructor(model, setup) { this.model = model; this.known = new Map(); this.older = new Map(); const {vocab} = model.config;
    this.setup = {...setup, vocab, allowed: Uint8Array.from({length: vocab}, (_, v) => setup.forbidden.includes(v) ? 0 : 1)}; }
  // Logits of rows at their wanted positions. A row that was seen lately is not computed again: while the slider of one
  // policy moves, all rows of the other are known.
  logits(rows, wanted) {
    const keys = rows.map((row, n) => `${row} ${wanted[n]}`), fresh = new Map();
    if (this.known.size > 3000) [this.known, this.older] = [new Map(), this.known];
    for (const key of keys) if (!this.known.has(key) && this.older.has(key)) this.known.set(key, this.older.get(key));
    keys.forEach((key, n) => { if (!this.known.has(key) && !fresh.has(key)) fresh.set(key, n); });
    const numbers = [...fresh.values()], found = this.model.forward(numbers.map((n) => rows[n]), numbers.map((n) => wanted[n]));
    [...fresh.keys()].forEach((key, n) => this.known.set(key, found[n]));
    return keys.map((key) => this.known.get(key));
  }
  // Draw samples; `pause` is awaited after every step and may throw to stop.
  async sample({prompt, request, policy, length, block, seed, indices}, pause = async () => {}) {
    const {mask, eos} = this.setup, width = block || 32, start = prompt.length;
    const samples = indices.map((index) => ({index, key: rowKey(seed, request, index), row: [...prompt, ...Array(length).fill(mask)], first: start, step: 0, blockStep: 0, steps: Array(length).fill(-1), confidence: Array(length).fill(0)}));
    for (let active = samples; ; ) {
      for (const one of active) while (one.first < one.row.length && !this.masks(one, width).length) { one.first += width; one.blockStep = 0; }
      active = active.filter((one) => one.first < one.row.length);
      if (!active.length) break;
      const wanted = active.map((one) => this.masks(one, width)), logits = this.logits(active.map((one) => one.row), wanted);
      active.forEach((one, n) => this.advance(one, wanted[n], logits[n], policy, start));
      await pause();
    }
    return samples.map(({index, row, steps, confidence, step}) => {
      const tokens = row.slice(start), end = tokens.findIndex((token) => eos.includes(token)), written = end < 0 ? tokens.length : end;
      return {index, tokens, steps, confidence, nfe: leftToRight(policy) ? passesBefore(written, width, policy.k) : step, end: written};
    });
  }
  masks(one, width) { const found = []; for (let p = one.first; p < Math.min(one.first + width, one.row.length); p++) if (one.row[p] === this.setup.mask) found.push(p); return found; }
  advance(one, masked, logits, policy, start) {
    const tToken = policy.first_score !== "same" && one.step === 0 ? policy.first_t_token : policy.t_token;
    const needs = new Set([policy.score, policy.first_score]);
    const drawn = masked.map((position, n) => predict(logits, n, this.setup, policy, needs, tToken, tToken > 0 ? uniform(one.key, one.step, position, TOKEN) : 0));
    for (const n of choose(drawn, masked, policy, one.key, one.step, budget(policy, masked.length, one.step, one.blockStep))) {
      one.row[masked[n]] = drawn[n].token;
      one.steps[masked[n] - start] = one.step;
      one.confidence[masked[n] - start] = drawn[n].confidence;
    }
    one.step += 1; one.blockStep += 1;
  }
}
