// Where the viewer's data come from: `twotemp view`, which reads the run again when its files change.
const fetched = async (path) => {
  const answer = await fetch(path).catch(() => { throw new Error("`twotemp view` has ended. What was loaded is kept; start it again to see more."); });
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer.json();
};
const source = {
  overview: () => fetched("overview"),
  question: (n) => fetched(`question/${data.version}/${n}`),
  every: 2000,  // milliseconds between two looks at the run
};
