"""What a real model answers to forms of the comparative judge prompt, beside the judgments of people.

    python -m benchmarks.prompt_forms [--url http://127.0.0.1:8000 | --report] [CELL ...]

Each cell is a form of the prompt: JSON letters or objects, with and without an example of an
answer; one request for each aspect; the aspects in another order. It judges the documents that
people judged among the first 30 of BM25 for the 25 judged topics (`stand_in.tsv` in
`../shared/data/comparative` lists them). A finished cell is written to
`benchmarks/real_answers/CELL.jsonl`, keys and probabilities without texts, and is not measured
again; an interrupted one resumes from the answer cache. Without CELL all are measured; `--report`
only prints the table.

The model must be a real one (`make serve-small`); a small one is a real engine and a weak judge.
"""

from __future__ import annotations

import csv
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import yaml

from benchmarks.figures import machine, parse_sizes
from tests.vllm.real_data import REAL
from tests.vllm.server import ROOT
from touche_llm.api.language_model import LanguageModel
from touche_llm.corpus.json_lines import CorpusFile
from touche_llm.corpus.store import DocumentStore, ensure_store
from touche_llm.data import concurrency
from touche_llm.data.measure import CUTOFF, MACRO_F1, make_headline_ndcg
from touche_llm.data.records import Candidate, Reading
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.data.topics.reading import read_topics
from touche_llm.engines.settings import EngineConfig
from touche_llm.evaluation.agreement import estimate_stances
from touche_llm.evaluation.measures import estimate_grades
from touche_llm.evaluation.qrels import STANCE, Qrels, read_qrels
from touche_llm.judging.judgments import judge
from touche_llm.judging.requests import TopicDocument
from touche_llm.llm.label_statistics import LabelInformation
from touche_llm.prompts.fields import JudgePer
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.settings.yaml_text import read_yaml
from touche_llm.tasks import get_task
from touche_llm.tasks.parts import TASK_FILE
from touche_llm.tasks.task import Task, load_task

DATA = REAL / "comparative"
ANSWERS = ROOT / "benchmarks" / "real_answers"
TASK = get_task("comparative")
_JUDGE = (TASK.folder / "judge.jinja").read_text()
_LAST_LINE = re.compile(r"^Answer with .*$", re.MULTILINE)
_LETTERS = (
    "Answer with one JSON array of four values and nothing else, each label by its first letter: [{values}]",
    {
        "relevance": "relevance 0 to 3",
        "quality": "quality 0 to 3",
        "position": 'position "Y" or "N"',
        "stance": 'stance "F", "S" or "N"',
    },
)
_OBJECT = (
    "Answer with one JSON object and nothing else, with the keys in this order: {{{values}}}",
    {
        "relevance": '"relevance": 0 to 3',
        "quality": '"quality": 0 to 3',
        "position": '"position": "YES" or "NO"',
        "stance": '"stance": "FIRST", "SECOND" or "NEUTRAL"',
    },
)
_EXAMPLES = {
    "letters": ', written like [1,2,"Y","S"]',
    "object": ', written like {"relevance":1,"quality":2,"position":"YES","stance":"SECOND"}',
}
_COLUMNS = (
    *("prompt", "documents", "most frequent answer", "bits: relevance", "quality", "stance"),
    *("r: relevance", "quality", "nDCG@5: relevance", "quality", "macro-F1"),
)


@dataclass(frozen=True)
class Form:
    """A form of the judge prompt, with the fields of the answer in their order."""

    fields: tuple[str, ...] = ("relevance", "quality", "position", "stance")
    form: str = "letters"
    has_example: bool = False
    judge_per: JudgePer = "document"


CELLS = {
    "letters_example": Form(has_example=True),
    "letters": Form(),
    "objects_example": Form(form="object", has_example=True),
    "objects": Form(form="object"),
    "swapped": Form(("quality", "relevance", "position", "stance")),
    "single": Form(judge_per="field"),
}
# Cells whose readings are averaged.
MEANS = {"both_orders": ("letters", "swapped")}


class Answer(msgspec.Struct, frozen=True):
    """The answers about a document: their keys, and the readings by field."""

    topic: str
    document: str
    keys: list[str]
    readings: dict[str, Reading]


def write_template(form: Form) -> str:
    """Return the project's judge prompt with the rubrics in the order of a form, and an answer of this form."""
    sections = {
        found[2]: found[0]
        for found in re.finditer(r"^(\d)\. (\w+): .*?(?=\n\n)", _JUDGE, re.MULTILINE | re.S)
    }
    first, last = min(map(_JUDGE.index, sections.values())), _LAST_LINE.search(_JUDGE)
    assert last is not None
    rules = (
        re.sub(r"^\d", str(place), sections[name])
        for place, name in enumerate(form.fields, start=1)
    )
    pattern, names = _LETTERS if form.form == "letters" else _OBJECT
    answer = pattern.format(values=", ".join(names[name] for name in form.fields))
    answer += _EXAMPLES[form.form] if form.has_example else ""
    text = "\n\n".join([_JUDGE[:first].rstrip(), *rules, answer]) + _JUDGE[last.end() :]
    return text.replace("\nform: letters", f"\nform: {form.form}")


def make_task(fields: Sequence[str], template: str, folder: Path) -> Task:
    """Make a task with the aspects among the fields, in their order, and this judge prompt."""
    definition = read_yaml(TASK.folder / TASK_FILE)
    assert isinstance(definition, dict)
    aspects = {
        name: definition["aspects"][name] for name in fields if name in definition["aspects"]
    }
    parts = {"aspects": aspects, "weights": {"both": dict.fromkeys(aspects, 1.0)}, "measures": {}}
    definition |= parts | {"name": "variant", "features": ["objects", "stance_prompt"]}
    definition["corpus"] = {"reader": "json_lines"}
    folder.mkdir()
    (folder / TASK_FILE).write_text(yaml.safe_dump(definition, sort_keys=False))
    for name in ("objects", "stance", "best", "order", "queries"):
        (folder / f"{name}.jinja").write_text((TASK.folder / f"{name}.jinja").read_text())
    (folder / "judge.jinja").write_text(template)
    return load_task(folder)


async def measure(
    form: Form, work: Sequence[TopicDocument], texts: DocumentStore, model: LanguageModel
) -> list[Answer]:
    """Send the requests of a form, and return the answers to the documents that have all."""
    with tempfile.TemporaryDirectory() as name:
        task = make_task(form.fields, write_template(form), Path(name) / "task")
        prompt = load(task, purposes_of(task)["judge"], "judge", judge_per=form.judge_per)
    outcomes = await judge(work, texts, task.question, prompt, model.builder, lambda: None)
    for failure in outcomes.failures:
        print(f"failed: {failure}", file=sys.stderr)
    return [
        Answer(one.topic_id, one.document_id, one.answer_keys, one.readings)
        for one in outcomes.results
    ]


def judged_work() -> tuple[list[TopicDocument], Qrels]:
    """Return the judged documents of the first 30 of each topic, in their order, and the judgments."""
    names = {aspect: DATA / f"qrels-{aspect}.txt" for aspect in (*TASK.aspects, STANCE)}
    qrels = read_qrels(names, TASK)
    topics = {topic.id: topic for topic in read_topics(DATA / "topics.xml")}
    by_aspect: list[Mapping[str, Mapping[str, object]]] = [*qrels.grades.values(), qrels.stances]
    judged = {
        (topic, document)
        for of in by_aspect
        for topic, documents in of.items()
        for document in documents
    }
    stood = [(one.topic, one.document) for one in read_stand_in()]
    return [
        TopicDocument(topics[topic], document)
        for topic, document in stood
        if (topic, document) in judged
    ], qrels


def read_stand_in() -> list[Answer]:
    """Return the grades of the stand-in as readings; its grades have no probabilities."""
    answers = []
    with (DATA / "stand_in.tsv").open() as stream:
        for row in csv.DictReader(stream, delimiter="\t"):
            readings = {name: Reading(answered=float(row[name])) for name in TASK.aspects}  # type: ignore[arg-type]
            shares = {
                label: float(row[label]) for label in (TASK.stance.labels if TASK.stance else ())
            }
            readings[STANCE] = Reading(
                answered=max(shares, key=shares.__getitem__), probabilities=shares
            )
            answers.append(Answer(row["topic"], row["document"], [], readings))
    return answers


def average(cells: Sequence[Sequence[Answer]]) -> list[Answer]:
    """Return the means of the probabilities of several cells, over the documents that all have."""
    by_document = [{(one.topic, one.document): one.readings for one in cell} for cell in cells]
    means = []
    for place in [place for place in by_document[0] if all(place in cell for cell in by_document)]:
        readings = {}
        for field in by_document[0][place]:
            shares = [cell[place][field].probabilities or {} for cell in by_document]
            mean = {label: float(np.mean([of[label] for of in shares])) for label in shares[0]}
            readings[field] = Reading(answered=max(mean, key=mean.__getitem__), probabilities=mean)
        means.append(Answer(*place, [], readings))
    return means


def expected(reading: Reading) -> float:
    """Return the expected grade."""
    if reading.probabilities is None:
        return float(reading.answered)
    return sum(int(grade) * share for grade, share in reading.probabilities.items())


def condensed_ndcg(
    answers: Sequence[Answer], aspect: str, qrels: Qrels, score: Callable[[Answer], float]
) -> float:
    """Return the mean nDCG@5 over topics of the judged documents alone, by descending score."""
    grades = qrels.grades[aspect]
    rankings: dict[str, list[Candidate]] = {}
    for one in sorted(answers, key=score, reverse=True):
        if one.document in grades.get(one.topic, {}):
            ranking = rankings.setdefault(one.topic, [])
            ranking.append(Candidate(one.topic, one.document, len(ranking) + 1, score(one)))
    estimates = estimate_grades(ParsedRun(rankings, {}), aspect, grades, CUTOFF)
    return estimates[make_headline_ndcg(aspect)].value


def macro_f1(answers: Sequence[Answer], qrels: Qrels) -> float:
    """Return macro-F1 of the most probable stances over the judged documents."""
    stances = {
        (one.topic, one.document): max(shares, key=shares.__getitem__)
        for one in answers
        if (shares := one.readings[STANCE].probabilities)
    }
    rankings: dict[str, list[Candidate]] = {}
    for topic, document in stances:
        rankings.setdefault(topic, []).append(Candidate(topic, document, 0, 0.0))
    return estimate_stances(ParsedRun(rankings, stances), qrels, CUTOFF)[MACRO_F1].value


def describe(answers: Sequence[Answer], qrels: Qrels) -> list[str]:
    """Return the columns of a row of the table."""
    written = Counter(
        tuple(str(reading.answered) for reading in one.readings.values()) for one in answers
    )
    columns = [f"{len(answers)}", f"{max(written.values()) / len(answers):.0%}"]
    fields = [name for name in (*qrels.grades, STANCE) if name in answers[0].readings]
    for name in (*qrels.grades, STANCE):
        information = LabelInformation()
        for one in answers if name in fields else ():
            if (shares := one.readings[name].probabilities) is not None:
                information.add(shares)
        columns.append("" if information.bits is None else f"{information.bits:.3f}")
    for aspect, grades in qrels.grades.items():
        if aspect not in fields:
            columns.append("")
            continue
        pairs = [
            (expected(one.readings[aspect]), grades[one.topic][one.document])
            for one in answers
            if one.document in grades.get(one.topic, {})
        ]
        columns.append(f"{np.corrcoef(np.array(pairs).T)[0, 1]:.2f}")

    def sum_grades(one: Answer) -> float:
        return expected(one.readings["relevance"]) + expected(one.readings["quality"])

    columns.append(
        f"{condensed_ndcg(answers, 'relevance', qrels, lambda one: expected(one.readings['relevance'])):.3f}"
    )
    columns.append(
        f"{condensed_ndcg(answers, 'quality', qrels, sum_grades):.3f}"
        if "quality" in fields
        else ""
    )
    columns.append(f"{macro_f1(answers, qrels):.3f}" if STANCE in fields else "")
    return columns


def report() -> None:
    """Print the table of all measured cells."""
    work, qrels = judged_work()
    cells = {
        path.stem: [
            msgspec.json.decode(line, type=Answer) for line in path.read_bytes().splitlines()
        ]
        for path in sorted(ANSWERS.glob("*.jsonl"))
    }
    rows = {name: cells[name] for name in (*CELLS, "rank_llm") if name in cells}
    rows |= {
        name: average([cells[part] for part in parts])
        for name, parts in MEANS.items()
        if set(parts) <= cells.keys()
    }
    known = {document.key for document in work}
    rows["stand-in"] = [one for one in read_stand_in() if (one.topic, one.document) in known]
    print(f"| {' | '.join(_COLUMNS)} |")
    print("|---|" + "--:|" * (len(_COLUMNS) - 1))
    for name, answers in rows.items():
        print(f"| {name} | {' | '.join(describe(answers, qrels))} |")
    first = [Answer(*document.key, [], {}) for document in work]
    ranks = {document.key: -place for place, document in enumerate(work)}
    values = [
        condensed_ndcg(first, aspect, qrels, lambda one: ranks[one.topic, one.document])
        for aspect in qrels.grades
    ]
    print(f"| first stage | {len(work)} | | | | | | | {values[0]:.3f} | {values[1]:.3f} | |")
    print(f"\n{len({document.topic.id for document in work})} topics; {machine()}")


def main() -> None:
    """Measure the cells, and print the table."""
    parser = parse_sizes(__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(CELLS))
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument(
        "--report", action="store_true", help="print the table of the measured cells only"
    )
    options = parser.parse_args()
    if not options.report:
        # As many requests as the server runs at a time, so that others who use it do not wait
        # behind all.
        engine = EngineConfig(concurrency=16)
        corpus = CorpusFile(DATA / "passages.jsonl.gz", TASK.read_corpus)
        with (
            tempfile.TemporaryDirectory() as index,
            ensure_store(corpus, Path(index), warn=lambda _: None) as texts,
            LanguageModel(
                options.url, engine=engine, cache=ROOT / ".touche-llm" / "prompt_forms.sqlite"
            ) as model,
        ):
            for name in options.cells or CELLS:
                path = ANSWERS / f"{name}.jsonl"
                if path.exists():
                    continue
                print(name, file=sys.stderr)
                answers = concurrency.run(measure(CELLS[name], judged_work()[0], texts, model))
                path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in answers))
    report()


if __name__ == "__main__":
    main()
