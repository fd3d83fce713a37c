"""The names of the files in a run's folder."""

from collections.abc import Mapping

CONFIG = "config.yaml"
METADATA = "ir-metadata.yml"
# Held by the process that writes; it stays behind.
LOCK = ".touche-llm.lock"
CANDIDATES = "candidates.run.txt"
# Where pairs are made of them, the first stage finds sentences.
SENTENCES = "sentences.run.txt"
SENTENCE_JUDGMENTS = "sentence_judgments.jsonl"
# Only where topics name no objects.
OBJECTS = "objects.jsonl"
JUDGMENTS = "judgments.jsonl"
# What the stance prompt says.
STANCES = "stances.jsonl"
FAILURES = "failures.jsonl"
# Only with query expansion.
QUERIES = "queries.jsonl"
QUERY_FAILURES = "query_failures.jsonl"
# Only where the ranking compares documents.
COMPARISONS = "comparisons.jsonl"
COMPARISON_FAILURES = "comparison_failures.jsonl"
RUN = "run.txt"
# The same lines with all that is known of them, for analysis.
RESULTS = "results.tsv"
# Only with `touche-llm report`: every stage that runs again makes it the page of a run that is no more.
REPORT = "report.html"
# Only with `touche-llm batch`: what was exported last.
BATCH = "batch.json"
OF_RETRIEVE = (CANDIDATES, SENTENCES, QUERIES, QUERY_FAILURES)
# Where pairs are judged, the candidates too: they are replaced, not removed.
OF_JUDGE = (JUDGMENTS, OBJECTS, STANCES, SENTENCE_JUDGMENTS, FAILURES)
# The run first: what remains of a removal that was interrupted holds no run without what it was made from.
OF_RANK = (RUN, RESULTS, COMPARISONS, COMPARISON_FAILURES)
ALL_FAILURES = (QUERY_FAILURES, FAILURES, COMPARISON_FAILURES)
# What each stage writes, in the order of the stages.
OUTPUTS: Mapping[str, tuple[str, ...]] = {"retrieve": OF_RETRIEVE, "judge": OF_JUDGE, "rank": OF_RANK}
