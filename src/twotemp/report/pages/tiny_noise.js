// The noise of `twotemp.rng`: every number is a function of (seed, request, index, step, position, stream). 64-bit
// integers are pairs of 32-bit halves, since BigInt is slow; the keys are hashed once per sample, with BigInt.
let HI = 0, LO = 0;  // the result of the last operation
function multiply(ah, al, bh, bl) {
  const a0 = al & 0xffff, a1 = al >>> 16, b0 = bl & 0xffff, b1 = bl >>> 16;
  const middle = a1 * b0 + ((a0 * b0) >>> 16), rest = a0 * b1 + (middle & 0xffff);
  const high = a1 * b1 + Math.floor(middle / 65536) + Math.floor(rest / 65536);
  LO = Math.imul(al, bl) >>> 0;
  HI = (high + Math.imul(ah, bl) + Math.imul(al, bh)) >>> 0;
}
function add(ah, al, bh, bl) { const low = al + bl; LO = low >>> 0; HI = (ah + bh + (low > 0xffffffff ? 1 : 0)) >>> 0; }
const shifted = (bits) => { const h = HI, l = LO; LO = (l ^ ((l >>> bits) | (h << (32 - bits)))) >>> 0; HI = (h ^ (h >>> bits)) >>> 0; };
function mix() {  // SplitMix64's finalizer of (HI, LO)
  shifted(30); multiply(HI, LO, 0xbf58476d, 0x1ce4e5b9);
  shifted(27); multiply(HI, LO, 0x94d049bb, 0x133111eb);
  shifted(31);
}
const GOLDEN = [0x9e3779b9, 0x7f4a7c15], TOKEN = 1, POSITION = 2;
// A uniform number in (0, 1) with 52 bits; key: [high, low].
function uniform(key, step, position, stream) {
  multiply(GOLDEN[0], GOLDEN[1], 0, step + 1); add(HI, LO, key[0], key[1]); mix();
  const h = HI, l = LO;
  multiply(0xbf58476d, 0x1ce4e5b9, 0, stream); HI = (HI ^ h) >>> 0; LO = (LO ^ l) >>> 0; mix();
  const h2 = HI, l2 = LO;
  multiply(GOLDEN[0], GOLDEN[1], 0, position + 1); add(HI, LO, h2, l2); mix();
  return (HI * 1048576 + (LO >>> 12) + 0.5) * 2 ** -52;
}
const gumbel = (u) => -Math.log(-Math.log(u));
const logistic = (u) => Math.log(u) - Math.log1p(-u);

// BLAKE2b with an 8-byte digest, for texts: RFC 7693.
const IV = ["6a09e667f3bcc908", "bb67ae8584caa73b", "3c6ef372fe94f82b", "a54ff53a5f1d36f1", "510e527fade682d1", "9b05688c2b3e6c1f", "1f83d9abfb41bd6b", "5be0cd19137e2179"].map((hex) => BigInt("0x" + hex));
const SIGMA = ["0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d", "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0"].map((line) => [...line].map((digit) => parseInt(digit, 16)));
const WRAP = (1n << 64n) - 1n;
function blake2b8(text) {
  const bytes = new TextEncoder().encode(text), h = [...IV], rotate = (x, n) => ((x >> n) | (x << (64n - n))) & WRAP;
  h[0] ^= 0x01010008n;
  const blocks = Math.max(1, Math.ceil(bytes.length / 128));
  for (let block = 0; block < blocks; block++) {
    const last = block === blocks - 1, size = last ? bytes.length : (block + 1) * 128;
    const m = Array.from({length: 16}, (_, word) => { let x = 0n; for (let b = 7; b >= 0; b--) x = (x << 8n) | BigInt(bytes[block * 128 + word * 8 + b] ?? 0); return x; });
    const v = [...h, ...IV];
    v[12] ^= BigInt(size);
    if (last) v[14] ^= WRAP;
    const g = (a, b, c, d, x, y) => {
      v[a] = (v[a] + v[b] + x) & WRAP; v[d] = rotate(v[d] ^ v[a], 32n); v[c] = (v[c] + v[d]) & WRAP; v[b] = rotate(v[b] ^ v[c], 24n);
      v[a] = (v[a] + v[b] + y) & WRAP; v[d] = rotate(v[d] ^ v[a], 16n); v[c] = (v[c] + v[d]) & WRAP; v[b] = rotate(v[b] ^ v[c], 63n);
    };
    for (let round = 0; round < 12; round++) {
      const s = SIGMA[round % 10];
      for (let n = 0; n < 4; n++) g(n, n + 4, n + 8, n + 12, m[s[2 * n]], m[s[2 * n + 1]]);
      for (let n = 0; n < 4; n++) g(n, 4 + (n + 1) % 4, 8 + (n + 2) % 4, 12 + (n + 3) % 4, m[s[8 + 2 * n]], m[s[9 + 2 * n]]);
    }
    for (let n = 0; n < 8; n++) h[n] ^= v[n] ^ v[n + 8];
  }
  return h[0];
}
const rowKey = (seed, request, index) => { const hash = blake2b8(`${seed}\x1f${request}\x1f${index}`); return [Number(hash >> 32n), Number(hash & 0xffffffffn)]; };
// A prompt's id: the hexadecimal digest of its token ids, byte by byte.
const promptId = (ids) => {
  let hash = blake2b8(ids.join(" ")), text = "";
  for (let byte = 0; byte < 8; byte++, hash >>= 8n) text += Number(hash & 255n).toString(16).padStart(2, "0");
  return text;
};
