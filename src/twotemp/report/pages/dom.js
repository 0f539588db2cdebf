"use strict";
// What every page shares. Text that a model wrote only ever enters a page as a text node.
const $ = (selector, inside = document) => inside.querySelector(selector);
const make = (name, attributes = {}, ...children) => {
  const svg = ["svg", "path", "line", "text", "circle", "rect"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};

// From first (0) to last (1). Lightness rises evenly (OKLCH), so the order of steps can be read without the hues; chroma
// dips in the middle, where sRGB has no stronger teal, so that no color is clipped.
const ramp = (t) =>
  `oklch(${(0.4 + 0.48 * t).toFixed(3)} ${(0.1 + 0.05 * (2 * t - 1) ** 2).toFixed(4)} ${(290 - 192 * t).toFixed(1)})`;
const share = (step, steps) => steps > 1 ? Math.max(0, step) / (steps - 1) : 0;
// Black or white text, whichever has a contrast of at least 4.5 to 1.
const tint = (node, t) => {
  node.style.setProperty("--bg", ramp(t));
  node.style.setProperty("--fg", t < 0.32 ? "#fff" : "#000");
};
const paint = (node, step, steps) => tint(node, share(step, steps));
document.documentElement.style.setProperty(
  "--ramp", `linear-gradient(90deg, ${Array.from({length: 13}, (_, i) => ramp(i / 12)).join(", ")})`);

const fact = (value, name, kind = "") => make("span", {class: kind}, make("b", {}, String(value)), " " + name);
// A verdict is "right", "wrong" or nothing; its sign is for the eye, its name for a screen reader.
const sign = (verdict) => make("span", {class: verdict || ""},
  ...(verdict ? [make("span", {"aria-hidden": true}, verdict === "right" ? "\u2713" : "\u2717"), make("span", {class: "hidden"}, verdict)] : []));
// Milliseconds a step of a replay stays: about `whole` for all of it, but neither a blur nor a wait.
const pace = (steps, whole, longest) => Math.min(longest, Math.max(30, whole / steps));

// Compressed data in the page: chunks stand behind the script, so that the page appears before they are parsed.
const parsed = document.readyState === "loading" ? new Promise((done) => addEventListener("DOMContentLoaded", done)) : Promise.resolve();
const bytes = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
const unpacked = async (n) => {
  await parsed;
  const packed = bytes($(`script[data-chunk="${n}"]`).textContent);
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
};
