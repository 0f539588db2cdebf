// Where the viewer's data come from: this file. Chunks stand behind the script, so that the page appears before them.
const parsed = document.readyState === "loading" ? new Promise((done) => addEventListener("DOMContentLoaded", done)) : Promise.resolve();
const source = {
  overview: async () => JSON.parse($("#data").textContent),
  async question(n) {
    await parsed;
    const packed = Uint8Array.from(atob($(`script[data-chunk="${n}"]`).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  },
};
