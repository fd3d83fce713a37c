// Scores of search results: Sphinx's own, but headings that contain the words as they were typed come first.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([, , , , score, , kind]) => (kind === "title" ? score + 30 : score),
};
