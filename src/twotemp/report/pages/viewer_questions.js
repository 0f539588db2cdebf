// The list of questions: a heat map of the share of right samples, by policy. Verdicts are a character per sample:
// + right, - wrong, ! timeout, ? ungraded, . not graded yet.
const count = (verdicts, sign) => verdicts ? verdicts.split(sign).length - 1 : 0;
const graded = (verdicts) => verdicts ? count(verdicts, "+") + count(verdicts, "-") + count(verdicts, "!") : 0;
const shareRight = (verdicts) => graded(verdicts) ? count(verdicts, "+") / graded(verdicts) : null;
const solved = (question, policy) => count(question.verdicts[policy], "+") > 0;
const of = (question, policy) => question.verdicts[policy];

// What a filter keeps; a and b are numbers of policies.
const FILTERS = {
  all: ["all questions", () => true],
  gained: ["solved by A and not by B", (q, a, b) => solved(q, a) && of(q, b) && !solved(q, b)],
  late: ["solved by A, but not by its first sample", (q, a) => solved(q, a) && of(q, a)[0] !== "+"],
  always: ["A is always right", (q, a) => shareRight(of(q, a)) === 1],
  never: ["solved by no policy", (q) => Object.values(q.verdicts).every((v) => !v.includes("+"))],
  ungraded: ["with ungraded samples", (q) => Object.values(q.verdicts).some((v) => /[?.]/.test(v))],
  errors: ["with timeouts", (q) => Object.values(q.verdicts).some((v) => v.includes("!"))],
};
const SORTS = {
  order: ["in the order of the data", null],
  difference: ["largest A − B first", (q) => (shareRight(of(q, state.b)) ?? 0) - (shareRight(of(q, state.a)) ?? 0)],
  hardest: ["hardest first (A)", (q) => shareRight(of(q, state.a)) ?? 2],
  spread: ["most undecided first (A)", (q) => Math.abs(0.5 - (shareRight(of(q, state.a)) ?? 2))],
};
const MOST_ROWS = 1000;
let searched = null;  // the search of all samples: its words, the questions looked at, and those in which they occur
const ofSearch = () => searched?.words === state.search.toLowerCase() ? searched : null;
let reading = {list: "", top: 0};  // how far down the reader was in which list

const sets = () => [...new Set(data.policies.map((policy) => policy.set))];
const policiesOf = (set) => data.policies.map((policy, n) => ({...policy, n})).filter((policy) => policy.set === set);
const listed = () => {
  const words = state.search.toLowerCase(), inside = ofSearch()?.found, inSet = new Set(policiesOf(state.set).map(({n}) => String(n)));
  const [, keep] = FILTERS[state.filter], [, key] = SORTS[state.sort];
  const found = data.questions.map((question, n) => ({...question, n})).filter((question) =>
    Object.keys(question.verdicts).some((n) => inSet.has(n)) && keep(question, state.a, state.b) &&
    (!words || `${question.id} ${question.prompt ?? ""}`.toLowerCase().includes(words) || inside?.has(question.n)));
  return key ? found.sort((x, y) => key(x) - key(y)) : found;
};

const chooser = (name, label, options, value, change) => {
  const select = make("select", {id: name}, ...options.map(([key, text]) => make("option", {value: key}, text)));
  select.value = String(value);
  select.addEventListener("change", () => change(select.value));
  return make("label", {}, label, select);
};

function drawControls() {
  const policies = policiesOf(state.set), names = policies.map(({n, name}) => [n, name]), several = policies.length > 1;
  const compares = ([key]) => several || !["gained", "difference"].includes(key);  // not with itself
  const search = make("input", {id: "search", type: "search", placeholder: "words", value: state.search});
  search.addEventListener("input", () => go({search: search.value}, false));
  const inside = make("button", {type: "button", id: "inside"}, "in samples too");
  inside.addEventListener("click", () => searchSamples(state.search));
  const form = make("form", {class: "card controls", role: "search"},
    ...(sets().length > 1 ? [chooser("set", "task", sets().map((set) => [set, set]), state.set, (set) => go({set, a: policiesOf(set)[0].n, b: policiesOf(set).at(-1).n}))] : []),
    chooser("filter", "show", Object.entries(FILTERS).filter(compares).map(([key, [text]]) => [key, text]), state.filter, (filter) => go({filter})),
    ...(several ? [chooser("a", "policy A", names, state.a, (a) => go({a: +a})), chooser("b", "policy B", names, state.b, (b) => go({b: +b}))] : []),
    chooser("sort", "order", Object.entries(SORTS).filter(compares).map(([key, [text]]) => [key, text]), state.sort, (sort) => go({sort})),
    make("div", {class: "wide find"}, make("label", {}, "search", search), inside));
  form.addEventListener("submit", (event) => { event.preventDefault(); searchSamples(state.search); });  // Enter
  return form;
}

// Look for a text in every sample and in the reasons of its verdict: all chunks are opened one after the other, and the
// list grows meanwhile. Another text in the search box ends it.
async function searchSamples(text) {
  const mine = searched = {words: text.toLowerCase(), count: 0, found: new Set()};
  if (!mine.words) return drawRows();
  for (let n = 0; n < data.questions.length; n++) {
    const {texts, grades} = await source.question(n);
    if (ofSearch() !== mine) return;
    if ([...texts, ...grades.map((grade) => grade?.[3] ?? "")].some((one) => one.toLowerCase().includes(mine.words))) mine.found.add(n);
    mine.count = n + 1;
    if (mine.count % 10 === 0 || mine.count === data.questions.length) drawRows();
  }
}

function drawRows() {
  const policies = policiesOf(state.set), rows = listed(), several = policies.length > 1;
  const heads = policies.map(({n, name}) => make("th", {scope: "col"}, make("span", {}, name), ...(several && n === state.a ? [make("b", {class: "side"}, "A")] : []), ...(several && n === state.b ? [make("b", {class: "side"}, "B")] : [])));
  const body = rows.slice(0, MOST_ROWS).map((question) => {
    const link = make("a", {href: address({question: question.id, task: question.task, "sample-a": "", "sample-b": ""})}, make("small", {}, question.id), " ", (question.prompt ?? "").slice(0, 140));
    const row = make("tr", {}, make("th", {scope: "row"}, link), ...policies.map(({n}) => {
      const verdicts = of(question, n), part = shareRight(verdicts);
      const cell = make("td", {class: part === null ? "none" : "heat"}, part === null ? "–" : `${count(verdicts, "+")}/${graded(verdicts)}`);
      if (part !== null) cell.style.setProperty("--share", `${Math.round(100 * part)}%`);
      return cell;
    }));
    // The whole row is the link, with the keys held that open another tab; selecting text is no click.
    row.addEventListener("click", (event) => { if (!link.contains(event.target) && getSelection().isCollapsed) link.dispatchEvent(new MouseEvent("click", event)); });
    return row;
  });
  const more = rows.length > MOST_ROWS ? ` The first ${MOST_ROWS} are shown: filter or search to see others.` : "";
  const shown = rows.length ? "Cells: right samples / graded samples." : "None matches: choose another filter or search.";
  const search = ofSearch(), all = data.questions.length;
  const samples = search?.words ? search.count < all ? ` Searching the samples: ${search.count} of ${all} questions so far.` : " Their samples were searched, too." : "";
  $("#found").textContent = `${rows.length} of ${all} questions. ${shown}${more}${samples}`;
  $("#rows").replaceChildren(make("table", {class: "heatmap"}, make("thead", {}, make("tr", {}, make("th", {scope: "col"}, "question"), ...heads)), make("tbody", {}, ...body)));
}

function drawQuestions() {
  const rows = make("div", {id: "rows", class: "card scroll", tabindex: 0, role: "region", "aria-label": "Heat map of questions"});
  $("#part-questions").replaceChildren(drawControls(), make("p", {id: "found", role: "status"}), rows);
  drawRows();
  // Back from a question, the list is where it was left.
  if (reading.list === location.hash) rows.scrollTop = reading.top;
  rows.addEventListener("scroll", () => { reading = {list: location.hash, top: rows.scrollTop}; });
}
