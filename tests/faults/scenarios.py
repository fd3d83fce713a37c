"""The commands that write, each with what comes before it and what comes next."""

from __future__ import annotations

from dataclasses import dataclass

Command = tuple[str, ...]


def command(line: str) -> Command:
    """A command line; `{url}` stands for the model's address."""
    return tuple(line.split())


@dataclass(frozen=True)
class Scenario:
    """A command to be disturbed.

    Attributes:
        name: As in the counts.
        before: Commands that make the state in which it starts.
        command: The command line.
        then: Commands that come next; given right after a kill, each refuses or gives what it gives
            undisturbed.
        asks: Whether the command asks the model.
    """

    name: str
    before: tuple[Command, ...]
    command: Command
    then: tuple[Command, ...] = ()
    asks: bool = False

    @property
    def task(self) -> str:
        """The shared task whose topics its commands rank."""
        lines = " ".join(part for line in (*self.before, self.command) for part in line)
        return next(
            (task for task in ("controversial", "sentence_pairs") if task in lines), "comparative"
        )


# As many requests as may be in flight when a command is killed.
IN_FLIGHT = 4
_ADDRESS = f"--base-url {{url}} --concurrency {IN_FLIGHT}"
_SERVER = f"{_ADDRESS} --retry-for 1"
_DATA = {
    "comparative": "--task comparative --topics comparative/topics.xml --corpus comparative/passages.jsonl --topic 3 "
    "--topic 7",
    "controversial": "--task controversial --topics controversial/topics.xml --corpus controversial/documents.jsonl "
    "--limit-topics 2",
    "sentence_pairs": "--task sentence_pairs --topics sentence_pairs/topics.xml "
    "--corpus sentence_pairs/args_processed_04_01.csv --limit-topics 1 --set sentences.pool=20",
}
_RETRIEVE = {task: command(f"retrieve {data} --depth 6 --out run") for task, data in _DATA.items()}
_JUDGE = command(f"judge --out run --stance-depth 3 {_SERVER}")
_JUDGE_PAIRS = command(f"judge --out run --judge-pairs 6 --both-orders 2 {_SERVER}")
_RANK = command("rank --out run")
_STAGES = (_RETRIEVE["comparative"], _JUDGE, _RANK)
_SMALL = {
    "comparative": "--stance-depth 3",
    "controversial": "--stance-depth 2",
    "sentence_pairs": "--judge-pairs 6",
}
_QRELS = "--relevance qrels/relevance --stance qrels/stance"


def _run(task: str, steps: str, more: str = "") -> Command:
    return command(
        f"run {_DATA[task]} --depth 6 {_SMALL[task]} --rank {steps} --out run {_SERVER} {more}"
    )


def _index(task: str, more: str = "") -> Command:
    corpus = _DATA[task].split("--corpus ")[1].split()[0]
    return command(f"index --task {task} --corpus {corpus} {more}")


_EXPORT = command("batch export judge --out run --model fake --context 8192 --stance-depth 0")
# Not a command of the program: the harness itself answers the requests of `run/requests.jsonl`.
ANSWER_BATCH: Command = ("answer", "run/requests.jsonl", "responses.jsonl")
# Nor is this: judgments of people for the run in `run`.
WRITE_QRELS: Command = ("qrels", "run", "qrels")
_IMPORT = command("batch import responses.jsonl --out run")
_REPLAY = command("judge --out run --stance-depth 0 --cache-mode replay")
_SECOND_RUN = _run("comparative", "judge,setwise:4", "--out second --tag second")
_COPY = command("prompts copy judge mine/judge.jinja")
_REPORT = command(f"report run {_QRELS}")

SCENARIOS = (
    Scenario("index", (), _index("comparative"), (_RETRIEVE["comparative"],)),
    Scenario(
        "index, built anew",
        (_index("comparative"),),
        _index("comparative", "--k1 0.9"),
        (_RETRIEVE["comparative"],),
    ),
    Scenario("index, sentences", (), _index("sentence_pairs"), (_RETRIEVE["sentence_pairs"],)),
    Scenario("retrieve", (), _RETRIEVE["comparative"], (_JUDGE, _RANK)),
    Scenario(
        "retrieve, other queries",
        (),
        command(f"{' '.join(_RETRIEVE['comparative'])} --query-expansion {_ADDRESS}"),
        (_JUDGE, _RANK),
        asks=True,
    ),
    Scenario("judge", (_RETRIEVE["comparative"],), _JUDGE, (_RANK,), asks=True),
    Scenario("judge, pages", (_RETRIEVE["controversial"],), _JUDGE, (_RANK,), asks=True),
    Scenario("judge, sentences", (_RETRIEVE["sentence_pairs"],), _JUDGE_PAIRS, (_RANK,), asks=True),
    Scenario("rank", (_RETRIEVE["comparative"], _JUDGE), _RANK, (_REPORT[:2],)),
    Scenario(
        "rank, by pairs",
        (_RETRIEVE["comparative"], _JUDGE),
        command(f"rank --out run --rank judge,pairwise:4 {_SERVER}"),
        (_REPORT[:2],),
        asks=True,
    ),
    Scenario(
        "rank again, other weights",
        _STAGES,
        command("rank --out run --weight-relevance 0.1"),
        (_REPORT[:2],),
    ),
    Scenario(
        "rank again, by lists",
        (*_STAGES, command(f"rank --out run --rank judge,pairwise:3 {_SERVER}")),
        command(f"rank --out run --rank judge,listwise:6 {_SERVER}"),
        (_REPORT[:2],),
        asks=True,
    ),
    Scenario("run", (), _run("comparative", "judge,pairwise:4"), (_RANK,), asks=True),
    Scenario(
        "run, pages",
        (),
        _run("controversial", "judge,listwise:4,balance:4", "--query-expansion"),
        (_RANK,),
        asks=True,
    ),
    Scenario("run, sentences", (), _run("sentence_pairs", "judge,setwise:4"), (_RANK,), asks=True),
    Scenario(
        "run again",
        (_run("comparative", "judge"),),
        _run("comparative", "judge"),
        (_RANK,),
        asks=True,
    ),
    Scenario(
        "batch export",
        (_RETRIEVE["comparative"],),
        _EXPORT,
        (ANSWER_BATCH, _IMPORT, _REPLAY, _RANK),
    ),
    Scenario(
        "batch import", (_RETRIEVE["comparative"], _EXPORT, ANSWER_BATCH), _IMPORT, (_REPLAY, _RANK)
    ),
    Scenario(
        "cache export",
        _STAGES,
        command("cache export answers.jsonl"),
        (command("cache import answers.jsonl"),),
    ),
    Scenario(
        "cache import",
        (*_STAGES, command("cache export answers.jsonl")),
        command("cache import answers.jsonl --cache other.sqlite"),
        (
            command("judge --out run --stance-depth 3 --cache other.sqlite --cache-mode replay"),
            _RANK,
        ),
    ),
    Scenario(
        "fuse",
        (*_STAGES, _SECOND_RUN),
        command("fuse run/run.txt second/run.txt --out fused/run.txt"),
    ),
    Scenario(
        "calibrate",
        (*_STAGES, WRITE_QRELS),
        command("calibrate run --stance qrels/stance --out thresholds.yaml"),
        (command("rank --out run --thresholds thresholds.yaml"),),
    ),
    Scenario("report", (*_STAGES, WRITE_QRELS), _REPORT),
    Scenario(
        "compare, page",
        (*_STAGES, _SECOND_RUN, WRITE_QRELS),
        command(f"compare run second --task comparative {_QRELS} --html sides.html"),
    ),
    Scenario("prompts copy", (), _COPY, (command("prompts show mine/judge.jinja"),)),
    Scenario(
        "prompts compare",
        (*_STAGES, WRITE_QRELS, _COPY),
        command(
            f"prompts compare judge mine/judge.jinja {_DATA['comparative']} {_QRELS} --sample 20 "
            f"--html matrix.html --overwrite {_SERVER}"
        ),
        asks=True,
    ),
    Scenario(
        "regress record",
        _STAGES,
        command("regress record run first"),
        (command("regress check first"),),
    ),
    Scenario(
        "regress record, replaced",
        (
            *_STAGES,
            command("regress record run first"),
            command("rank --out run --weight-relevance 0.1"),
        ),
        command("regress record run first --overwrite"),
        (command("regress check first"),),
    ),
    Scenario(
        "tira",
        (command("cache import controversial/cassette.jsonl --cache kept/answers.sqlite"),),
        command(
            "tira -i controversial -o run --cache-folder kept --cache-mode replay --config controversial/demo.yaml"
        ),
    ),
    Scenario("tasks new", (), command("tasks new essays"), (command("tasks show essays"),)),
    Scenario("demo", (), command("demo --task comparative --out shown")),
)

# Commands that only read, beside those above.
_MEASURED = (*_STAGES, WRITE_QRELS)
READERS = (
    Scenario("evaluate", _MEASURED, command(f"evaluate run --task comparative {_QRELS}")),
    Scenario("validate", _STAGES, command("validate run/run.txt --task comparative")),
    Scenario("show", _STAGES, command("show run")),
    Scenario("runs", _STAGES, command("runs .")),
    Scenario("run, dry", (), _run("comparative", "judge", "--dry-run"), asks=True),
    Scenario("doctor", (), command("doctor {url}"), asks=True),
    Scenario("prompts check", (), command("prompts check judge")),
    Scenario("tasks list", (), command("tasks list")),
)
