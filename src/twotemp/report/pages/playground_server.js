const headers = () => ({"content-type": "application/json", ...($("#key").value ? {authorization: `Bearer ${$("#key").value}`} : {})});
const address = () => `/v1/${about.chat ? "chat/" : ""}completions`;

// A fetch or a read that fails is a TypeError with words of the browser, such as "Failed to fetch".
const LOST = `The server at ${location.origin} does not answer: it was stopped, or the connection is lost. What was drawn is kept. Start the server again, then press Sample.`;
const lost = (error) => { throw error.name === "AbortError" ? error : new Error(LOST); };

async function asked(path, options = {}) {
  const answer = await fetch(path, {headers: headers(), ...options}).catch(lost);
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  if (answer.status === 401) $("#keyed").hidden = false;
  throw new Error(said?.error?.message || `the server said ${answer.status}`);
}

// Where samples come from: the server that sent this page. `live`: fast enough to draw while a slider moves.
const source = {
  live: false,
  about: async () => (await asked("/playground/about")).json(),
  start: (panel, signal) => asked(address(), {method: "POST", signal, body: JSON.stringify({...body(panel), stream: true, diffusing: true})}),
  async read(panel, answer) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const {done, value} = await reader.read().catch(lost);
      if (done) break;
      const lines = (text + value).split("\n\n");
      text = lines.pop();
      for (const line of lines) {
        if (line === "data: [DONE]") continue;
        const data = JSON.parse(line.slice(6));
        if (data.error) throw new Error(data.error.message);
        data.choices.forEach((choice) => panel.take(choice));
      }
    }
  },
  async grade(problem, texts, signal) {
    const answer = await asked("/playground/grade", {method: "POST", signal, body: JSON.stringify({task: problem.task, problem: problem.id, texts})});
    return (await answer.json()).grades;
  },
};
