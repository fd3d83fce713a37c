"""Runs on the samples, judgments for them, and runs over hostile texts, for the tests of reports."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.sax.saxutils import escape

import msgspec

from tests.sample_runs import Silent, run_scripted
from tests.scripted_engine import Script
from touche_llm.cli.demo import sample_config
from touche_llm.config.files import load_config
from touche_llm.data.files import write_records
from touche_llm.data.records import Attempt, Failure, Model
from touche_llm.data.runs.reading import read_run
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.request import Request
from touche_llm.runs import stages as pipeline
from touche_llm.tasks.parts import Scale

# Each would set `window.ran`, fetch something, or leave the element that it stands in.
ATTACKS = (
    "<script>window.ran = 1</script>",
    "<img src=x onerror='window.ran = 2'>",
    "</blockquote></details></main><svg onload=window.ran=3>",
    "<style>body { display: none }</style>",
    '<a href="javascript:window.ran=4">link</a>',
    '"><iframe srcdoc="<script>parent.ran=5</script>"></iframe>',
    "<link rel=stylesheet href=http://127.0.0.1:9/x.css><img src=http://127.0.0.1:9/x.png>",
    "{{ 7 * 7 }} {% raw %} ]]> --> </script></style></title></textarea>",
    "<body onload='window.ran = 6' style='display: none'>",
)


# Leaves the text or the attribute that it is inserted into, unless it is escaped.
POISON = "'\"><x-bad onclick=ran()>"
# What templates compare with words of their own, or look up by them.
_FIXED = frozenset({"template", "source", "letter", "baseline"})


def changed(value: Any, /, **changes: Any) -> Any:
    """The same part of a page with other values."""
    return (
        SimpleNamespace(**vars(value) | changes)
        if isinstance(value, SimpleNamespace)
        else replace(value, **changes)
    )


def poisoned(value: Any) -> Any:
    """Records of a page with an attack at the beginning of each text in them."""
    if isinstance(value, str):
        return POISON + value
    if isinstance(value, Path):
        return value.with_name(POISON.replace("/", "") + value.name)
    if isinstance(value, Mapping):
        return {poisoned(key): poisoned(each) for key, each in value.items()}
    if isinstance(value, Scale):
        return value
    if isinstance(value, Model):
        return value.model_copy(
            update={name: poisoned(getattr(value, name)) for name in type(value).model_fields}
        )
    if isinstance(value, list | tuple):
        return type(value)(map(poisoned, value))
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value) if each.name not in _FIXED]
        return replace(value, **{name: poisoned(getattr(value, name)) for name in names})
    if isinstance(value, SimpleNamespace):
        return changed(
            value,
            **{name: poisoned(each) for name, each in vars(value).items() if name not in _FIXED},
        )
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(
            value, **{name: poisoned(each) for name, each in msgspec.structs.asdict(value).items()}
        )
    return value


def sample_run(task: str, folder: Path) -> Path:
    """The folder of the run of a sample, made from its cassette."""
    out = folder / task
    asyncio.run(pipeline.run_all(sample_config(task, out, {}), out, Silent()))
    return out


def write_qrels(run: Path, folder: Path) -> dict[str, Path]:
    """Made-up judgments of nine in ten of a comparative run's documents, by aspect."""
    chance = random.Random(0)
    found = read_run(run / "run.txt")
    lines: dict[str, list[str]] = {"relevance": [], "quality": [], "stance": []}
    for topic, ranking in found.rankings.items():
        for each in ranking:
            if chance.random() > 0.9:
                continue
            own = found.stances[topic, each.document_id]
            stance = (
                own
                if chance.random() < 0.7
                else chance.choice(["FIRST", "SECOND", "NEUTRAL", "NO"])
            )
            values = {
                "relevance": max(2 - each.rank // 4, 0),
                "quality": min(chance.randrange(4), 2),
                "stance": stance,
            }
            for aspect, value in values.items():
                lines[aspect].append(f"{topic} 0 {each.document_id} {value}\n")
    files = {aspect: folder / f"qrels-{aspect}.txt" for aspect in lines}
    for aspect, path in files.items():
        path.write_text("".join(lines[aspect]))
    return files


def hostile_run(folder: Path) -> Path:
    """The folder of a run whose topic, passages, ids, model, answers and failures are all attacks."""
    inputs = folder / "input"
    inputs.mkdir(parents=True)
    title = escape(f"Which is better, tea or coffee? {ATTACKS[0]} {ATTACKS[4]}")
    narrative, objects = escape(" ".join(ATTACKS)), escape(f"tea {ATTACKS[1]}, coffee {ATTACKS[2]}")
    (inputs / "topics.xml").write_text(
        f"<topics><topic><number>1</number><title>{title}</title><objects>{objects}</objects>"
        f"<description>tea</description><narrative>{narrative}</narrative></topic></topics>"
    )
    passages = [
        {"id": f'"><b/onclick=ran()>{n}', "contents": f"tea and coffee {attack}"}
        for n, attack in enumerate(ATTACKS)
    ]
    # A word that is in more than half of the passages says nothing to the first stage.
    passages += [
        {"id": f"plain-{n}", "contents": f"nothing of interest, number {n}"} for n in range(30)
    ]
    (inputs / "passages.jsonl").write_text("".join(json.dumps(each) + "\n" for each in passages))
    config = load_config(
        None,
        {
            "topics": inputs / "topics.xml",
            "corpus": inputs / "passages.jsonl",
            "index": folder / "index",
            "cache.file": folder / "answers.sqlite",
            "tag": "<script>window.ran=7</script>",
        },
    )
    out = folder / "<img src=x onerror=window.ran=8>"
    asyncio.run(run_scripted(config, out, steady(2)))
    attempts = [
        Attempt(sample=n, kind=ATTACKS[0], reason=attack, text=attack)
        for n, attack in enumerate(ATTACKS)
    ]
    failure = Failure(
        topic_id="1",
        document_id=passages[0]["id"],
        kind=ATTACKS[1],
        prompt=ATTACKS[2],
        attempts=attempts,
    )
    write_records(out / "failures.jsonl", [failure])
    return out


def steady(grade: int) -> Script:
    """Answers each question with this grade, or else with the first label that the schema allows."""

    def answer(request: Request) -> dict[str, int | str]:
        fields = list_fields(request.schema)
        return {
            name: grade if grade in field["enum"] else field["enum"][0]
            for name, field in fields.items()
        }

    return answer
