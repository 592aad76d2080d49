// How the search of the site ranks what it finds. A name of the code, such as `Trainer` or
// `device_stream`, finds its declaration first. A word finds the page or the section whose title has it.
// Sphinx reads the object `Scorer` (https://www.sphinx-doc.org/en/master/usage/configuration.html).
var Scorer = {
  score: ([page, title, , , score, , kind]) => {
    const asked = new URLSearchParams(window.location.search).get("q") ?? "";
    const named = /[_.(]|[a-z][A-Z]|^[A-Z][a-z]+$/.test(asked);
    const isIt = `.${title}`.endsWith(`.${asked}`);  // `Plan` and not `plan`, `Roxxel.write` and not `Scan.write`
    if (kind === "object") return score + (named ? 60 + (isIt ? 10 : 0) : 0);
    const words = asked.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [];
    const titled = words.every((word) => title.toLowerCase().includes(word)) ? 40 : 0;
    const defines = /^(reference\/|concepts)/.test(page);
    if (/^(guides\/|start|install|tutorial|troubleshooting)/.test(page)) return score + titled + 3;
    return score + (defines ? titled + (named ? 5 : 2) : 0);
  },
  objNameMatch: 12,
  objPartialMatch: 0,
  objPrio: { 0: 0, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
