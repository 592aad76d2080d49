// How the search of the site ranks what it finds: an explanation before a declaration.
// Sphinx reads the object `Scorer` (https://www.sphinx-doc.org/en/master/usage/configuration.html).
var Scorer = {
  score: ([page, , , , score]) => score + (/^(guides\/|start|tutorial|concepts|troubleshooting)/.test(page) ? 20 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 5, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
