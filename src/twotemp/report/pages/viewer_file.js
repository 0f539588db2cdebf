// Where the viewer's data come from: this file.
const source = {
  overview: async () => JSON.parse($("#data").textContent),
  question: async (n) => (await unpacked(n)).json(),
};
