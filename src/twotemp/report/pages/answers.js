// Distinct answers, most frequent first. An answer is {text, who: indices of its samples, verdict,
// detail, found: whether it is an answer, not a text in which none was found}.
const distinct = (texts, verdict = () => "", detail = () => "", found = () => true) => {
  const groups = new Map();
  texts.forEach((text, n) => {
    if (text === null) return;
    const key = `${found(n)} ${text}`;
    if (!groups.has(key)) groups.set(key, {text, who: [], verdict: verdict(text, n), detail: detail(text, n), found: found(n)});
    groups.get(key).who.push(n);
  });
  return [...groups.values()].sort((x, y) => y.found - x.found || y.who.length - x.who.length || x.who[0] - y.who[0]);
};
const bits = (answers) => {
  const all = answers.reduce((sum, one) => sum + one.who.length, 0);
  return answers.reduce((sum, {who}) => sum + who.length / all * Math.log2(all / who.length), 0);
};

class AnswerList {
  constructor(choose) { this.node = make("ol", {class: "answers"}); this.choose = choose; }
  draw(answers) {
    const most = Math.max(1, ...answers.map(({who}) => who.length));
    this.node.replaceChildren(...answers.map(({text, who, verdict, detail, found}) => {
      const button = make("button", {type: "button", title: detail || ""},
        make("span", {class: "count"}, String(who.length)), sign(verdict), make("span", {class: found ? "" : "unanswered"}, text || "∅"));
      button.style.setProperty("--share", `${100 * who.length / most}%`);
      button.dataset.who = who.join(" ");
      button.addEventListener("click", () => this.choose(who[0]));
      return make("li", {}, button);
    }));
  }
  mark(n) {
    for (const button of this.node.querySelectorAll("button"))
      button.setAttribute("aria-current", String(button.dataset.who.split(" ").includes(String(n))));
  }
}

// A word tree of answers: those that begin with the same words go together until they fork. A way that few took is
// counted, not drawn, and so are ways below the deepest fork.
const MOST_WAYS = 8, DEEPEST = 40;
function forkTree(answers, total, choose) {
  const branch = (some, from, depth) => {
    const ways = new Map();
    for (const one of some) {
      const word = one.words[from] ?? "";  // "": it ends here
      if (!ways.has(word)) ways.set(word, []);
      ways.get(word).push(one);
    }
    const size = (group) => group.reduce((sum, one) => sum + one.who.length, 0);
    const sorted = [...ways.values()].sort((x, y) => size(y) - size(x) || x[0].who[0] - y[0].who[0]);
    const items = sorted.slice(0, MOST_WAYS).map((group) => {
      let to = from;
      while (group.every((one) => to < one.words.length && one.words[to] === group[0].words[to])) to += 1;
      const words = group[0].words.slice(from, to).join("").trim() || "∅", count = size(group);
      const button = make("button", {type: "button"},
        make("span", {class: "words"}, words), " ", make("small", {}, String(count)), make("span", {class: "hidden"}, ` of ${total} samples`), group.length === 1 ? sign(group[0].verdict) : "");
      button.addEventListener("click", () => choose(group[0].who[0]));
      return make("li", {}, button, group.length > 1 && to > from && depth < DEEPEST ? branch(group, to, depth + 1) : "");
    });
    const rest = sorted.slice(MOST_WAYS).flat();
    if (rest.length) items.push(make("li", {class: "more"}, `${rest.length} more, ${size(rest)} samples`));
    return make("ul", {}, ...items);
  };
  const split = answers.map((one) => ({...one, words: one.text.match(/\s*\S+/g) || []}));
  return split.length ? branch(split, 0, 0) : "";
}
