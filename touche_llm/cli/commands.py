"""Table of the commands, from which the help and the completion of the program are made.

The module of a command is imported only when the command runs, or when its own help or the
completion of its options is requested. Therefore the table repeats one sentence of each docstring.
Options are declared beside the settings (`cli.options`) or as parameters of the functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """Command that a function carries out.

    Attributes:
        name: Name on the command line.
        function: Dotted name of the function.
        summary: First sentence of the function's docstring.
    """

    name: str
    function: str
    summary: str


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """Command that has commands of its own.

    Attributes:
        name: Name on the command line.
        summary: Help text.
        commands: Its commands, in the order of the help.
    """

    name: str
    summary: str
    commands: Sequence[CommandEntry]


_BATCH = GroupEntry(
    "batch",
    "Write and import batch files, for `vllm run-batch` or Ray Data.",
    (
        CommandEntry(
            "export",
            "touche_llm.cli.batch.export",
            "Write the requests of a stage that the cache cannot answer, as requests.jsonl in the folder of the run.",
        ),
        CommandEntry(
            "ray",
            "touche_llm.cli.batch.ray",
            "Answer a file of requests with a Ray Data job, here or on a cluster (RAY_ADDRESS).",
        ),
        CommandEntry(
            "import",
            "touche_llm.cli.batch.import_",
            "Store the responses to the last export of a run's folder in its cache.",
        ),
    ),
)
_REGRESS = GroupEntry(
    "regress",
    "Record runs, and check that their replays give the same bytes.",
    (
        CommandEntry(
            "record",
            "touche_llm.cli.regress.record_",
            "Store a finished run with everything that a replay needs, in DIR/NAME.",
        ),
        CommandEntry(
            "check",
            "touche_llm.cli.regress.check_",
            "Replay recorded runs offline, with the current program and templates.",
        ),
    ),
)
_PROMPTS = GroupEntry(
    "prompts",
    "See, check, render and try prompts, and compare them.",
    (
        CommandEntry(
            "list",
            "touche_llm.cli.prompts.list_",
            "List the prompts of the tasks: the project's own, or those of a folder that replace them.",
        ),
        CommandEntry(
            "show",
            "touche_llm.cli.prompts.show_",
            "Print a prompt's template and the files that it includes.",
        ),
        CommandEntry(
            "check",
            "touche_llm.cli.prompts.check_",
            "Check prompts without a model: whether they load, name all labels "
            "and share what they can with other requests.",
        ),
        CommandEntry(
            "copy",
            "touche_llm.cli.prompts_trial.copy",
            "Write a prompt as a file of your own to change, with the files that it includes and its examples.",
        ),
        CommandEntry(
            "render",
            "touche_llm.cli.prompts_trial.render",
            "Print the messages that would be sent about a topic and documents.",
        ),
        CommandEntry(
            "try",
            "touche_llm.cli.prompts_trial.try_",
            "Send the requests of a run for a topic now, and show grades, probabilities and human judgments.",
        ),
        CommandEntry(
            "compare",
            "touche_llm.cli.prompts_compare.compare",
            "Compare prompts by their agreement with human judgments of a sample.",
        ),
    ),
)
_TASKS = GroupEntry(
    "tasks",
    "List and show tasks, and create a new one.",
    (
        CommandEntry("list", "touche_llm.cli.tasks.list_", "List the project's own tasks."),
        CommandEntry(
            "show",
            "touche_llm.cli.tasks.show_",
            "Show a task: what it grades and labels, its limits, weights, measures and published results.",
        ),
        CommandEntry(
            "new",
            "touche_llm.cli.tasks.new",
            "Write an example of a task to change: its definition, a template, topics, documents and recorded answers.",
        ),
    ),
)
_CACHE = GroupEntry(
    "cache",
    "Export and import the entries of an answer cache as cassettes, and remove entries.",
    (
        CommandEntry(
            "export",
            "touche_llm.cli.cache.export_",
            "Write all entries as JSON Lines sorted by key: a cassette, to be kept with a run or a test.",
        ),
        CommandEntry(
            "import",
            "touche_llm.cli.cache.import_",
            "Add the entries of a cassette to a cache: all of them, or none if one does not fit.",
        ),
        CommandEntry(
            "forget",
            "touche_llm.cli.cache.forget",
            "Remove entries from a cache, damaged ones too, so that the next run requests them again.",
        ),
    ),
)

# By the heading of the help.
PANELS: Mapping[str, Sequence[CommandEntry | GroupEntry]] = {
    "Make a run": (
        CommandEntry("run", "touche_llm.cli.run.run", "Run the pipeline: retrieve, judge, rank."),
        CommandEntry(
            "index", "touche_llm.cli.index.index", "Store a corpus and build its BM25 index."
        ),
        CommandEntry(
            "retrieve", "touche_llm.cli.run.retrieve", "Retrieve the candidates of each topic."
        ),
        CommandEntry(
            "judge", "touche_llm.cli.run.judge", "Judge the candidates of a run with the model."
        ),
        CommandEntry(
            "rank",
            "touche_llm.cli.run.rank",
            "Write run.txt from the candidates and judgments of a run.",
        ),
        CommandEntry(
            "fuse", "touche_llm.cli.fuse.fuse", "Fuse runs by reciprocal ranks or by scores."
        ),
        _BATCH,
        CommandEntry(
            "tira",
            "touche_llm.cli.tira.tira",
            "Make the run for an input folder of TIRA, without a network.",
        ),
        CommandEntry(
            "demo",
            "touche_llm.cli.demo.demo",
            "Run the tasks on small samples, offline, and measure the runs.",
        ),
    ),
    "Look at runs": (
        CommandEntry(
            "lab", "touche_llm.cli.runs.lab", "Serve a page to look at runs and to improve prompts."
        ),
        CommandEntry(
            "show",
            "touche_llm.cli.show.show",
            "Show a run: settings, stages, failures, first documents.",
        ),
        CommandEntry(
            "runs",
            "touche_llm.cli.runs.runs",
            "List the runs in a folder, with model, measures and costs.",
        ),
        CommandEntry("report", "touche_llm.cli.runs.report", "Write an HTML page about a run."),
    ),
    "Measure and check": (
        CommandEntry(
            "evaluate",
            "touche_llm.cli.evaluate.evaluate",
            "Measure runs with qrels, with 95 % intervals over topics.",
        ),
        CommandEntry(
            "compare",
            "touche_llm.cli.evaluate.compare",
            "Compare runs with the first: differences, intervals and tests.",
        ),
        CommandEntry(
            "agree",
            "touche_llm.cli.agree.agree",
            "Measure how far judges agree with people, and whether they rank systems as people do.",
        ),
        CommandEntry(
            "qrels",
            "touche_llm.cli.qrels.qrels",
            "Write a judge's labels as qrels, and measure systems whose documents people did not judge.",
        ),
        CommandEntry(
            "calibrate",
            "touche_llm.cli.evaluate.calibrate",
            "Fit the thresholds of stance labels that take no side, and measure them on other topics.",
        ),
        CommandEntry("validate", "touche_llm.cli.validate.validate", "Check a run file."),
        _REGRESS,
    ),
    "Prompts, tasks and their data": (
        _PROMPTS,
        _TASKS,
        CommandEntry(
            "data",
            "touche_llm.cli.tasks.data",
            "List the published files of the tasks, or check downloaded files.",
        ),
    ),
    "Servers and caches": (
        CommandEntry(
            "doctor",
            "touche_llm.cli.doctor.doctor",
            "Check what a server can do, and name the options for the rest.",
        ),
        _CACHE,
    ),
}
