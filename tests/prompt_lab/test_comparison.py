"""Comparison of prompts: measures, choice, caching, and what is refused."""

from __future__ import annotations

import asyncio
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.expect import raises_at
from tests.prompt_lab.conftest import BLUNT, DULL, NDCG, SHARP, Bench
from tests.prompt_variants import asked_with, config_of, reader, title_of
from tests.report.reports import sample_run
from tests.sample_runs import Silent
from tests.scripted_engine import ScriptedEngine
from touche_llm.config.files import load_config
from touche_llm.data.files import read_records
from touche_llm.data.measure import MACRO_F1, Measure, MeasureName
from touche_llm.data.records import Candidate, Judgment
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import PromptError, Rejected, ReplayMiss, UsageError
from touche_llm.evaluation.judges.labels import find_grade
from touche_llm.evaluation.measures import estimate_grades
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.cache import CacheMode
from touche_llm.prompt_lab.comparison import ComparisonInputs, compare_prompts
from touche_llm.prompt_lab.holdout import read_accesses
from touche_llm.prompt_lab.sample import Plan
from touche_llm.prompt_lab.variants import Variant, compute_chance_ndcg, load_variants
from touche_llm.prompts.purposes import load_named
from touche_llm.tasks import get_task, prompts_folder


async def test_the_better_prompt_wins_and_is_confirmed_on_other_topics(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    found = await bench.compare(
        blunt, sharp, aspects=("relevance", "quality", "stance"), confirm=True
    )
    assert (found.verdict.winner, found.verdict.confirmed) == (str(sharp), True)
    assert [part.name for part in found.parts] == ["choice", "hold-out"]
    assert not set(found.parts[0].topics) & set(found.parts[1].topics)
    for part in found.parts:
        of = part.estimates[str(sharp)]
        assert {measure: figure.value for measure, figure in of.items()} == {
            NDCG: 1.0,
            Measure("relevance", MeasureName.SPEARMAN): 1.0,
            Measure("quality", MeasureName.SPEARMAN): 1.0,
            MACRO_F1: 1.0,
        }
        worse = part.estimates[str(blunt)]
        assert all(worse[measure].value < 0.8 for measure in of)
        for measure in of:
            change = part.differences[str(sharp), measure]
            assert change["difference"] == pytest.approx(of[measure].value - worse[measure].value)
    # All of 8 topics: both ways in which all signs are alike.
    assert found.parts[1].differences[str(sharp), NDCG]["p"] == pytest.approx(2 / 2**8)


async def test_of_equal_prompts_the_first_wins(bench: Bench, sharp: Path) -> None:
    found = await bench.compare(sharp, bench.wording("other", "ANOTHER"), confirm=True)
    assert (found.verdict.winner, found.verdict.confirmed) == (str(sharp), None)
    assert "no choice to confirm" in found.verdict.sentence
    change = found.parts[0].differences[str(found.variants[1].name), NDCG]
    assert (change["difference"], change["p"], change["ties"]) == (0.0, 1.0, 8)
    # There is nothing to confirm, so the held-out topics are not accessed.
    assert len(found.parts) == 1 and found.earlier_accesses is None
    (choice,) = read_accesses(bench.log)
    assert choice.topics == [title_of(topic).strip() for topic in found.parts[0].topics]


async def test_a_prompt_that_only_fits_the_topics_of_the_choice_is_not_confirmed(
    bench: Bench, blunt: Path
) -> None:
    lucky = bench.wording("lucky", "LUCKY")
    bench.engine = reader(DULL | {"LUCKY": lambda topic, number: int(topic) % 2 == 0})
    found = await bench.compare(blunt, lucky, confirm=True)
    assert (found.verdict.winner, found.verdict.confirmed) == (str(lucky), False)
    assert "Not confirmed: on the 8 topics held out the difference is -" in found.verdict.sentence


async def test_only_changed_requests_are_sent_again(bench: Bench, blunt: Path, sharp: Path) -> None:
    first = await bench.compare(blunt, sharp, confirm=True)
    assert len(bench.engine.requests) == 2 * 96
    bench.engine = reader(DULL)
    again = await bench.compare(blunt, sharp, confirm=True)
    assert bench.engine.requests == []
    assert again.verdict == first.verdict
    counts = [said.counts for said in again.judged.values()]
    assert (sum(count.requests for count in counts), sum(count.cache_hits for count in counts)) == (
        0,
        2 * 96,
    )
    bench.wording("sharp", f"{SHARP} and better")
    changed = await bench.compare(blunt, sharp, confirm=True)
    assert len(bench.engine.requests) == len(asked_with(bench.engine, SHARP)) == 96
    sent = {key: said.counts.requests for key, said in changed.judged.items()}
    assert sent == {("choice", str(blunt)): 0, ("hold-out", str(blunt)): 0} | {
        (part, str(sharp)): 48 for part in ("choice", "hold-out")
    }
    bench.wording("sharp", f"{SHARP} and best")
    bench.flags, bench.engine = {"cache__mode": CacheMode.REPLAY}, None  # type: ignore[assignment]
    with pytest.raises(ReplayMiss, match="mine|sharp"):
        await bench.compare(blunt, sharp)


async def test_documents_are_ranked_by_the_weights_of_the_run(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    script = bench.engine.script

    def answer(request: Any) -> Any:
        said: Any = script(request)
        return (
            said
            if SHARP in request.messages[0].content.split()
            else said | {"quality": 2 - said["quality"]}
        )

    bench.engine = ScriptedEngine(answer)
    bench.flags = {"weights__quality": 0.0}
    values = (await bench.compare("judge", sharp)).parts[0].estimates
    assert [of[NDCG].value for of in values.values()] == [1.0, 1.0]
    bench.flags = {"weights__relevance": 0.0}
    values = (await bench.compare("judge", sharp)).parts[0].estimates
    assert values["judge"][NDCG].value < values[str(sharp)][NDCG].value == 1.0


def test_the_chance_level_is_the_mean_over_all_orders() -> None:
    judged = {"a": 2.0, "b": 1.0, "c": 0.0, "d": -2.0, "e": 0.333, "f": 2.0}
    for documents in (judged, {name: judged[name] for name in "abc"}):
        orders = {str(number): order for number, order in enumerate(permutations(documents))}
        run = ParsedRun(
            {
                topic: [
                    Candidate(topic, name, rank, -float(rank))
                    for rank, name in enumerate(order, start=1)
                ]
                for topic, order in orders.items()
            },
            {},
        )
        mean = estimate_grades(run, "relevance", dict.fromkeys(orders, documents), 5)[NDCG].value
        assert compute_chance_ndcg({"1": documents}).value == pytest.approx(mean)


async def test_a_sample_without_a_relevant_document_is_refused(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    bench.files["relevance"].write_text("1 0 1-0 0\n1 0 1-1 -2\n")
    with pytest.raises(UsageError, match="split"):
        await bench.compare(blunt, sharp)
    assert bench.engine.requests == []


async def test_an_example_of_a_sampled_topic_is_refused(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    sharp.with_name("sharp.examples.yaml").write_text(
        f"- topic: {{id: '99', title: '{title_of('3').upper()}'}}\n  document: x\n  first: tea\n  second: coffee\n"
        "  answer: {relevance: 1, quality: 1, position: NO, stance: NEUTRAL}\n"
    )
    with pytest.raises(UsageError, match="topic 99.*topic 3"):
        await bench.compare(blunt, sharp)
    assert bench.engine.requests == []
    # Topics that are not selected are not in the sample.
    bench.flags = {"topic": ("1", "2", "4", "5")}
    assert (await bench.compare(blunt, sharp)).verdict.winner == str(sharp)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["judge"], "^judge "),
        (["judge", "stance"], "^stance: .*'stance'.*'judge'.*"),
        (["judge", "judge"], "^judge: "),
        (["judge", "nothing"], r"nothing\.jinja: "),
    ],
)
async def test_prompts_that_cannot_be_compared_are_refused_before_any_request(
    bench: Bench, names: list[str], pattern: str
) -> None:
    with pytest.raises((UsageError, PromptError), match=pattern):
        await bench.compare(*names)
    assert bench.engine.requests == []


class PartialEngine(ScriptedEngine):
    """Rejects requests of the sharp prompt about documents of the highest grade."""

    async def complete(self, request: Any) -> Any:
        if SHARP in request.messages[0].content.split() and str(
            request.origin.document_id
        ).endswith(("-2", "-5")):
            raise Rejected(400, "not this one")
        return await super().complete(request)


async def test_documents_without_an_answer_rank_last(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    bench.engine = PartialEngine(reader({BLUNT: lambda topic, number: number == 2}).script)
    found = await bench.compare(blunt, sharp, aspects=("relevance", "stance"))
    assert len(found.all_failures()) == 2 * 8
    part = found.parts[0]
    assert part.estimates[str(sharp)][NDCG].value < part.estimates[str(blunt)][NDCG].value
    # Over its own documents it has no fault.
    assert part.estimates[str(sharp)][Measure("relevance", MeasureName.SPEARMAN)].value == 1.0


async def test_topics_without_a_relevant_document_are_left_out_of_ndcg(
    bench: Bench, blunt: Path
) -> None:
    lines = bench.files["relevance"].read_text().splitlines()
    changed = [line[:-1] + "0" if line.startswith("3 ") else line for line in lines]
    # The highest grade of this topic is 1.
    changed = [
        line[:-1] + "1" if line.startswith("5 ") and line.endswith("2") else line
        for line in changed
    ]
    bench.files["relevance"].write_text("\n".join(changed) + "\n")
    found = await bench.compare("judge", blunt)
    assert "3" in found.parts[0].topics
    counted = found.parts[0].estimates["judge"][NDCG].topics
    assert "3" not in counted and "5" in counted


async def test_missing_objects_are_extracted_first(bench: Bench, blunt: Path, sharp: Path) -> None:
    topics = bench.files["topics.xml"]
    topics.write_text(topics.read_text().replace("<objects>tea, coffee</objects>", ""))
    script = bench.engine.script

    def answer(request: Any) -> Any:
        fields = list_fields(request.schema)
        return {"first": "tea", "second": "coffee"} if "first" in fields else script(request)

    bench.engine = ScriptedEngine(answer)
    found = await bench.compare(blunt, sharp, confirm=True)
    assert {topic.objects for topic in found.topics} == {("tea", "coffee")}
    assert len(bench.engine.requests) == 16 + 2 * 96
    # A topic whose objects are not found is left out and named.
    bench.engine = ScriptedEngine(lambda request: {"first": "none", "second": "none"})
    topics.write_text(topics.read_text().replace("<title>Is tea 1 ", "<title>Is the tea 1 "))
    found = await bench.compare(blunt, sharp, split="all")
    (note,) = (note for note in found.notes if note.startswith("topics left out"))
    assert note.endswith(": 1") and note in bench.notices and "1" not in found.parts[0].topics


def test_prompts_for_sentence_pairs_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sample_run("sentence_pairs", tmp_path)
    judged = read_records(run / "judgments.jsonl", Judgment, "judgments")
    task = get_task("sentence_pairs")
    own = {
        (judgment.topic_id, judgment.document_id): find_grade(judgment, "coherence", task)
        for judgment in judged
        if judgment.source != "inherited"
    }
    lines = [
        f"{topic} 0 {document} {grade}\n" for (topic, document), grade in list(own.items())[:40]
    ]
    (tmp_path / "coherence").write_text("".join(lines))
    copy = tmp_path / "copy.jinja"
    copy.write_text((prompts_folder() / "sentence_pairs" / "judge.jinja").read_text())
    monkeypatch.chdir(tmp_path)
    qrels = read_qrels({"coherence": tmp_path / "coherence"}, get_task("sentence_pairs"))
    config = load_config(run / "config.yaml", {})
    found = asyncio.run(
        compare_prompts(
            ComparisonInputs(config, ["judge", str(copy)], qrels, Plan(split="all")), Silent()
        )
    )
    (part,) = found.parts
    assert len(part.sample) == 40
    kappa = Measure("coherence", MeasureName.KAPPA)
    assert part.estimates["judge"][kappa].value == part.estimates[str(copy)][kappa].value == 1.0
    with raises_at(UsageError, "sentence", "'judge'"):
        asyncio.run(
            compare_prompts(ComparisonInputs(config, ["judge", "sentence"], qrels), Silent())
        )


def test_variants_of_the_same_name_are_an_error_and_drafts_of_one_file_are_none(
    bench: Bench,
) -> None:
    task = get_task(bench.task)
    config = config_of(bench.folder, bench.files, task=bench.task)
    prompt = load_named(task, "judge").prompt
    saved = Variant("saved", prompt)
    draft = Variant("draft", prompt)
    assert load_variants([saved, draft], config, task) == [saved, draft]
    with raises_at(UsageError, "saved", "given twice"):
        load_variants([saved, Variant("saved", prompt)], config, task)
