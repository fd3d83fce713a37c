"""The names of the files in a run's folder."""

from collections.abc import Mapping

CONFIG = "config.yaml"
METADATA = "ir-metadata.yml"
# Locked by the process that writes; the file remains.
LOCK = ".touche-llm.lock"
CANDIDATES = "candidates.run.txt"
# Candidates of the first stage if pairs are made.
SENTENCES = "sentences.run.txt"
SENTENCE_JUDGMENTS = "sentence_judgments.jsonl"
# Only if topics name no objects.
OBJECTS = "objects.jsonl"
JUDGMENTS = "judgments.jsonl"
# Answers to the stance prompt.
STANCES = "stances.jsonl"
FAILURES = "failures.jsonl"
# Only with query expansion.
QUERIES = "queries.jsonl"
QUERY_FAILURES = "query_failures.jsonl"
# Only if the ranking compares documents.
COMPARISONS = "comparisons.jsonl"
COMPARISON_FAILURES = "comparison_failures.jsonl"
RUN = "run.txt"
# Run lines with grades and stances, for analysis.
RESULTS = "results.tsv"
# Only with `touche-llm report`; outdated as soon as a stage runs again.
REPORT = "report.html"
# Only with `touche-llm evaluate`; it names the run file that it measured by its hash, and so survives later stages.
EVALUATION = "evaluation.yaml"
# Only with `touche-llm batch`: the last export.
BATCH = "batch.json"
# Only in a recorded run, which has some files of a run's folder, but is none.
RECORDED = "recorded.json"
OF_RETRIEVE = (CANDIDATES, SENTENCES, QUERIES, QUERY_FAILURES)
# Judging pairs replaces the candidates too, but does not remove them.
OF_JUDGE = (JUDGMENTS, OBJECTS, STANCES, SENTENCE_JUDGMENTS, FAILURES)
# The run comes first so that an interrupted removal never leaves a run without its inputs.
OF_RANK = (RUN, RESULTS, COMPARISONS, COMPARISON_FAILURES)
ALL_FAILURES = (QUERY_FAILURES, FAILURES, COMPARISON_FAILURES)
# Outputs of each stage, in the order of the stages.
OUTPUTS: Mapping[str, tuple[str, ...]] = {"retrieve": OF_RETRIEVE, "judge": OF_JUDGE, "rank": OF_RANK}
STAGES = tuple(OUTPUTS)
