"use strict";
/*include tiny_noise.js*/
/*include tiny_model.js*/
/*include tiny_sampler.js*/
// A worker draws some samples of a request. A newer request of the same side ends an older one.
let sampler = null;
const newest = {}, channel = new MessageChannel();
const pauses = [];
channel.port1.onmessage = () => pauses.shift()();
const breath = () => new Promise((done) => { pauses.push(done); channel.port2.postMessage(null); });
onmessage = async ({data}) => {
  if (data.setup) { sampler = new Sampler(new TinyModel(data.setup.config, data.weights, new WebAssembly.Module(data.wasm)), data.setup); return; }
  newest[data.side] = data.id;
  const pause = async () => { await breath(); if (newest[data.side] !== data.id) throw new Error("newer"); };
  try {
    await pause();
    const samples = await sampler.sample({...data.request, request: promptId(data.request.prompt)}, pause);
    postMessage({id: data.id, samples});
  } catch (error) { if (error.message !== "newer") postMessage({id: data.id, error: error.message}); }
};
