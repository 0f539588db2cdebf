// Where samples come from: `tiny` in this page, in a few workers that each draw a part of the samples.
const given = JSON.parse($("#data").textContent), {vocabulary, special, before, after, unknown} = given.setup;
const words = Object.fromEntries(Object.entries(vocabulary).map(([word, id]) => [id, word]));
const encode = (text) => [...before, ...text.trim().split(/\s+/).filter(Boolean).map((word) => vocabulary[word] ?? unknown), ...after];
const piece = (id) => special.includes(id) ? "" : words[id];
const waiting = new Map();  // request id -> {samples, missing, done, fail}
let workers = null, asked = 0;

async function startWorkers() {
  const weights = new Float32Array(await (await unpacked(0)).arrayBuffer());
  const address = URL.createObjectURL(new Blob([given.worker], {type: "text/javascript"})), wasm = bytes(given.wasm);
  return Array.from({length: Math.min(4, navigator.hardwareConcurrency || 2)}, () => {
    const worker = new Worker(address);
    worker.onmessage = ({data}) => {
      const request = waiting.get(data.id);
      if (!request) return;
      if (data.error) return request.fail(new Error(data.error));
      request.samples.push(...data.samples);
      if (!--request.missing) { waiting.delete(data.id); request.done(request.samples); }
    };
    worker.onerror = (event) => { for (const request of waiting.values()) request.fail(new Error(event.message || "this browser cannot run the model: it needs WebAssembly with SIMD")); };
    worker.postMessage({setup: given.setup, weights, wasm});
    return worker;
  });
}

const policyOf = (panel) => {
  const policy = {...about.policies[panel.policy.value].defaults, ...panel.values, t_token: +$("#t").value};
  return Object.fromEntries(Object.entries(policy).map(([name, value]) => [name, value === "inf" ? Infinity : value !== "" && !isNaN(value) && typeof value === "string" ? +value : value]));
};

// A chain of steps `4 * 9 = 36 , 36 - 2 = 34`, graded as by `twotemp.graders.puzzles`.
function gradeChain({numbers, target}, text) {
  const failed = (detail, answer = null) => ({outcome: "failed", answer, detail});
  const left = numbers.map((number) => [number, String(number)]);
  for (const step of text.split(",")) {
    const match = /^\s*(\d{1,9})\s*([-+*/])\s*(\d{1,9})\s*=\s*(\d{1,9})\s*$/.exec(step), said = step.trim();
    if (!match) return failed(`not a step: '${said.slice(0, 40)}'`);
    const [x, y, z] = [+match[1], +match[3], +match[4]], operation = match[2], operands = [];
    for (const value of [x, y]) {
      const at = left.findLastIndex(([number]) => number === value);  // results are used before given numbers
      if (at < 0) return failed(`${value} is not available in '${said}'`);
      operands.push(left.splice(left.findIndex(([n, e]) => n === value && e === left[at][1]), 1)[0][1]);
    }
    const result = {"+": x + y, "-": x - y, "*": x * y, "/": y && x % y === 0 ? x / y : 0}[operation];
    if (result !== z || z < 1 || z > 99) return failed(`wrong step '${said}'`);
    if ("+*".includes(operation)) operands.sort((a, b) => a < b ? -1 : a > b ? 1 : 0);
    left.push([z, `(${operands[0]} ${operation} ${operands[1]})`]);
  }
  const [result, answer] = left.at(-1);
  if (left.length > 1) return failed(`${left.length - 1} of the numbers are left over`, answer);
  return result === target ? {outcome: "passed", answer, detail: ""} : failed(`ends at ${result}, not ${target}`, answer);
}

const source = {
  live: true,
  async about() { workers = await startWorkers(); $("#curl").hidden = true; return given.about; },
  start(panel, signal) {
    const prompt = encode($("#prompt").value), length = +$("#length").value, room = given.setup.config.length;
    if (prompt.length + length > room) throw new Error(`${prompt.length} tokens of prompt and ${length} of answer exceed the context of ${room}`);
    const request = {prompt, policy: policyOf(panel), length, block: +$("#block").value || null, seed: $("#seed").value};
    if (request.policy.k > length) throw new Error(`k=${request.policy.k} tokens per step exceed length=${length}; lower k`);
    const id = ++asked, parts = workers.map((_, w) => Array.from({length: +$("#n").value}, (_, n) => n).filter((n) => n % workers.length === w));
    return new Promise((done, fail) => {
      waiting.set(id, {samples: [], missing: parts.length, done, fail});
      signal.addEventListener("abort", () => { waiting.delete(id); fail(new DOMException("a newer request", "AbortError")); });
      workers.forEach((worker, w) => worker.postMessage({id, side: panel.side, request: {...request, indices: parts[w]}}));
    });
  },
  async read(panel, samples) {
    for (const {index, tokens, steps, confidence, nfe, end} of samples) {
      const byStep = new Map();
      steps.forEach((step, place) => byStep.set(step, [...(byStep.get(step) ?? []), [place, piece(tokens[place]), confidence[place]]]));
      for (const step of [...byStep.keys()].sort((x, y) => x - y)) panel.take({index, twotemp: {step, commits: byStep.get(step)}});
      panel.take({index, finish_reason: "stop", text: tokens.slice(0, end).map(piece).filter(Boolean).join(" "), twotemp: {nfe}});
    }
  },
  grade: async (problem, texts) => texts.map((text) => gradeChain(given.references[problem.id], text)),
};
