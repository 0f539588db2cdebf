// The overview: blocks of sentences, charts and tables, whatever kind of run they are about. What the reader has set is
// kept when the run grows: charts, and [column, down] by which a table is sorted, by their titles.
const drawnCharts = new Map(), sorting = new Map();
const chartOf = (one, block) => {
  const name = `${block}/${one.title}`, chart = new Chart(one, drawnCharts.get(name));
  drawnCharts.set(name, chart);
  return chart.node;
};
const BLOCKS = {
  sentences: ({title, items}) => make("section", {class: "card"}, make("h2", {}, title), make("ul", {class: "sentences"}, ...items.map((text) => make("li", {}, text)))),
  charts: ({title, items}) => make("section", {class: "card"}, make("h2", {}, title), make("div", {class: "charts"}, ...items.map((one) => chartOf(one, title)))),
  table: ({title, columns, rows}) => make("section", {class: "card"}, make("h2", {}, title), sortable(columns, rows, title)),
};

// A table whose columns sort on a click; a cell is a text, a number, or {text, value}.
function sortable(columns, rows, name) {
  const value = (cell) => cell?.value ?? cell, said = (cell) => String(cell?.text ?? cell ?? "");
  const body = make("tbody");
  const fill = (sorted) => body.replaceChildren(...sorted.map((row) => make("tr", {}, ...row.map((cell, n) =>
    n ? make("td", {class: typeof value(cell) === "number" ? "number" : ""}, said(cell)) : make("th", {scope: "row"}, said(cell))))));
  const heads = columns.map((column, n) => {
    const button = make("button", {type: "button"}, column), head = make("th", {scope: "col", class: n && rows.length && typeof value(rows[0][n]) === "number" ? "number" : ""}, button);
    button.addEventListener("click", () => sort(n, head.getAttribute("aria-sort") !== "descending"));
    return head;
  });
  const compare = (x, y) => typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", {numeric: true});
  const sort = (n, down) => {
    sorting.set(name, [n, down]);
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    heads[n].setAttribute("aria-sort", down ? "descending" : "ascending");
    fill([...rows].sort((x, y) => (down ? -1 : 1) * compare(value(x[n]), value(y[n]))));
  };
  if (sorting.has(name)) sort(...sorting.get(name));
  else fill(rows);
  return make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": name}, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
}

const MOST_COMPARED = 8;  // policies of a table of all pairs
// How many questions a policy of a task solves that another does not; each number links to them.
function differences(set) {
  const policies = policiesOf(set), [title, keep] = FILTERS.gained;
  const cell = (a, b) => {
    const number = data.questions.filter((question) => of(question, a) && keep(question, a, b)).length;
    return make("td", {class: "number"}, a === b ? "" : number ? make("a", {href: address({...defaults(), set, filter: "gained", a, b})}, String(number)) : "0");
  };
  const head = make("tr", {}, make("th", {scope: "col"}, "A ↓ B →"), ...policies.map(({name}) => make("th", {scope: "col", class: "number"}, name)));
  const body = policies.map((a) => make("tr", {}, make("th", {scope: "row"}, a.name), ...policies.map((b) => cell(a.n, b.n))));
  const name = `${set}: questions ${title}`;
  return make("section", {class: "card"}, make("h2", {}, name), make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": name}, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body))));
}

function drawOverview() {
  const drawn = (block) => BLOCKS[block.kind](block), race = data.kind === "tune";
  const gaps = data.gaps.length ? [make("section", {class: `card ${race ? "" : "gaps"}`}, make("h2", {}, race ? "Not drawn in full: dropped from the race, or missing" : "Incomplete"), make("ul", {}, ...data.gaps.map((gap) => make("li", {}, gap))))] : [];
  const compared = data.kind === "grpo" ? [] : sets().filter((set) => policiesOf(set).length > 1 && policiesOf(set).length <= MOST_COMPARED);
  const parts = [...data.blocks.slice(0, -1).map(drawn), ...compared.map(differences), ...data.blocks.slice(-1).map(drawn)];
  $("#part-overview").replaceChildren(...(race ? [...parts, ...gaps] : [...gaps, ...parts]));
}
