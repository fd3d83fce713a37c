from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.expect import raises_at
from tests.prompt_variants import asked_with, collection, config_of, opening, reader, wording
from tests.report.reports import sample_run
from tests.sample_runs import Silent
from tests.scripted_engine import ScriptedEngine
from touche_llm.config import load_config
from touche_llm.data.files import read_records
from touche_llm.data.records import Candidate, Document, Judgment, Topic
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError, EngineError, PromptError, ReplayMiss, UsageError
from touche_llm.evaluation.agreement import round_grade
from touche_llm.evaluation.measures import estimate_grades
from touche_llm.evaluation.qrels import Grades, read_grades, read_qrels
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.engines.base import Rejected
from touche_llm.prompt_lab.comparison import PromptComparison, compare_prompts
from touche_llm.prompt_lab.draw import Sampled, draw_sample
from touche_llm.prompt_lab.looks import hash_grades, look_log, read_looks
from touche_llm.prompt_lab.measures import compute_chance_ndcg
from touche_llm.prompt_lab.sample import Plan, read_sample, select_judged, split_topics, write_sample
from touche_llm.prompts.prompt import prompts_folder
from touche_llm.tasks import get_task

NDCG = "relevance nDCG@5"
SHARP, BLUNT = "SHARP", "BLUNT"
# A prompt with this word misreads two of three documents.
DULL: dict[str, Callable[[str, int], bool]] = {BLUNT: lambda topic, number: number < 4}


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals are as wide as they like here; tests of 8 topics are exact with so many."""
    monkeypatch.setattr("touche_llm.evaluation.significance.RESAMPLES", 300)


@dataclass
class Bench:
    """A collection with two wordings, and what is compared on it."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    files: dict[str, Path]
    engine: ScriptedEngine = field(default_factory=lambda: reader(DULL))
    flags: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    async def compare(
        self, *names: str | Path, aspects: tuple[str, ...] = ("relevance",), **plan: Any
    ) -> PromptComparison:
        self.monkeypatch.setattr("touche_llm.prompt_lab.comparison.open_model", opening(self.engine))
        self.monkeypatch.chdir(self.folder)
        config = config_of(self.folder, self.files, **self.flags)
        qrels = read_qrels({aspect: self.files[aspect] for aspect in aspects}, get_task("comparative"))
        progress = Silent()
        self.notices = progress.notices
        return await compare_prompts(config, list(map(str, names)), qrels, Plan(**plan), progress)

    @property
    def log(self) -> Path:
        return look_log(self.folder / "answers.sqlite")

    def wording(self, name: str, words: str) -> Path:
        return wording(self.folder / "mine" / f"{name}.jinja", words)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch, collection(tmp_path))


@pytest.fixture
def blunt(bench: Bench) -> Path:
    return bench.wording("blunt", BLUNT)


@pytest.fixture
def sharp(bench: Bench) -> Path:
    return bench.wording("sharp", SHARP)


async def test_the_better_wording_wins_and_is_confirmed_on_other_topics(bench: Bench, blunt: Path, sharp: Path) -> None:
    found = await bench.compare(blunt, sharp, aspects=("relevance", "quality", "stance"), confirm=True)
    assert (found.verdict.winner, found.verdict.confirmed) == (str(sharp), True)
    assert [part.name for part in found.parts] == ["choice", "hold-out"]
    assert not set(found.parts[0].topics) & set(found.parts[1].topics)
    for part in found.parts:
        of = part.estimates[str(sharp)]
        assert {measure: figure.value for measure, figure in of.items()} == {
            NDCG: 1.0,
            "relevance kappa": 1.0,
            "quality kappa": 1.0,
            "stance macro-F1": 1.0,
        }
        worse = part.estimates[str(blunt)]
        assert all(worse[measure].value < 0.8 for measure in of)
        for measure in of:
            change = part.differences[str(sharp), measure]
            assert change["difference"] == pytest.approx(of[measure].value - worse[measure].value)
    # All of 8 topics: both ways in which all signs are alike.
    assert found.parts[1].differences[str(sharp), NDCG]["p"] == pytest.approx(2 / 2**8)


async def test_of_equal_wordings_the_first_stays(bench: Bench, sharp: Path) -> None:
    found = await bench.compare(sharp, bench.wording("other", "ANOTHER"), confirm=True)
    assert (found.verdict.winner, found.verdict.confirmed) == (str(sharp), None)
    assert "no choice to confirm" in found.verdict.sentence
    change = found.parts[0].differences[str(found.variants[1].name), NDCG]
    assert (change["difference"], change["p"], change["ties"]) == (0.0, 1.0, 8)
    # Nothing is to be confirmed, so that nobody looked.
    assert len(found.parts) == 1 and found.earlier_looks is None
    (choice,) = read_looks(bench.log)
    assert choice.topics == list(found.parts[0].topics)


async def test_a_wording_that_only_suits_the_topics_it_was_chosen_on_is_not_confirmed(
    bench: Bench, blunt: Path
) -> None:
    lucky = bench.wording("lucky", "LUCKY")
    bench.engine = reader(DULL | {"LUCKY": lambda topic, number: int(topic) % 2 == 0})
    found = await bench.compare(blunt, lucky, confirm=True)
    assert (found.verdict.winner, found.verdict.confirmed) == (str(lucky), False)
    assert "Not confirmed: on the 8 topics held out the difference is -" in found.verdict.sentence
    # The other way round it is never chosen.
    found = await bench.compare(blunt, lucky, split="even")
    assert found.verdict.winner == str(blunt)


async def test_with_few_topics_held_out_it_is_said_that_they_cannot_confirm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, collection(tmp_path, topics=8))
    found = await bench.compare(bench.wording("blunt", BLUNT), bench.wording("sharp", SHARP), confirm=True)
    assert found.verdict.confirmed is False
    assert "with 4 topics p cannot be below 0.1250" in found.verdict.sentence


async def test_only_what_changed_is_asked_again(bench: Bench, blunt: Path, sharp: Path) -> None:
    first = await bench.compare(blunt, sharp, confirm=True)
    assert len(bench.engine.requests) == 2 * 96
    bench.engine = reader(DULL)
    again = await bench.compare(blunt, sharp, confirm=True)
    assert bench.engine.requests == []
    assert again.verdict == first.verdict
    counts = [said.counts for said in again.judged.values()]
    assert (sum(each.requests for each in counts), sum(each.cache_hits for each in counts)) == (0, 2 * 96)
    bench.wording("sharp", f"{SHARP} and better")
    changed = await bench.compare(blunt, sharp, confirm=True)
    assert len(bench.engine.requests) == len(asked_with(bench.engine, SHARP)) == 96
    asked = {key: said.counts.requests for key, said in changed.judged.items()}
    assert asked == {("choice", str(blunt)): 0, ("hold-out", str(blunt)): 0} | {
        (part, str(sharp)): 48 for part in ("choice", "hold-out")
    }


async def test_a_replay_asks_nobody_and_names_what_is_missing(bench: Bench, blunt: Path, sharp: Path) -> None:
    await bench.compare(blunt, sharp)
    bench.wording("sharp", f"{SHARP} and better")
    bench.flags = {"cache__mode": CacheMode.REPLAY}
    bench.engine = None  # type: ignore[assignment]
    with pytest.raises(ReplayMiss, match="mine|sharp"):
        await bench.compare(blunt, sharp)


async def test_all_variants_judge_the_same_documents(bench: Bench, blunt: Path, sharp: Path) -> None:
    found = await bench.compare(blunt, sharp, size=30, split="all")
    asked = [
        Counter((each.origin.topic_id, each.origin.document_id) for each in asked_with(bench.engine, word))
        for word in (BLUNT, SHARP)
    ]
    assert asked[0] == asked[1]
    assert sum(asked[0].values()) == 30 == sum(len(part.sample) for part in found.parts)


async def test_only_the_half_to_choose_on_is_seen_unless_the_choice_is_to_be_confirmed(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    found = await bench.compare(blunt, sharp)
    assert {each.origin.topic_id for each in bench.engine.requests} == {str(n) for n in range(1, 17, 2)}
    assert [part.name for part in found.parts] == ["choice"]
    assert (found.verdict.winner, found.verdict.confirmed, found.earlier_looks) == (str(sharp), None, None)
    assert "--confirm opens the topics held out" in found.verdict.sentence
    assert any("8 topics to choose on; 8 are held out" in notice for notice in bench.notices)
    assert [set(look.topics) for look in read_looks(bench.log)] == [{str(n) for n in range(1, 17, 2)}]


async def test_all_topics_are_one_where_none_is_held_out(bench: Bench, blunt: Path, sharp: Path) -> None:
    found = await bench.compare(blunt, sharp, split="all")
    (part,) = found.parts
    assert (part.name, len(part.topics)) == ("all", 16)
    assert "no topics were held out" in found.verdict.sentence
    with pytest.raises(UsageError, match="--split"):
        await bench.compare(blunt, sharp, split="all", confirm=True)


async def test_only_the_best_and_the_first_are_asked_about_the_topics_held_out(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    dull = bench.wording("dull", f"{BLUNT} again")
    found = await bench.compare(blunt, dull, sharp, confirm=True)
    choice, held = found.parts
    assert [each.name for each in found.variants_in(choice)] == [str(blunt), str(dull), str(sharp)]
    assert [each.name for each in found.variants_in(held)] == list(held.estimates) == [str(blunt), str(sharp)]
    assert {each.origin.topic_id for each in asked_with(bench.engine, "again")} == set(choice.topics)
    assert found.verdict.confirmed is True


async def test_each_look_is_counted_and_the_next_one_has_those_before(bench: Bench, blunt: Path, sharp: Path) -> None:
    first = await bench.compare(blunt, sharp, confirm=True)
    bench.wording("sharp", f"{SHARP} and better")
    second = await bench.compare(blunt, sharp, confirm=True)
    choice, one, again, two = read_looks(bench.log)
    assert (first.earlier_looks, second.earlier_looks) == ([], [one])
    assert (choice.topics, again.topics) == (list(first.parts[0].topics), list(second.parts[0].topics))
    assert (one.task, one.aspect, one.topics) == ("comparative", "relevance", list(first.parts[1].topics))
    assert one.qrels == two.qrels == hash_grades(read_grades(bench.files["relevance"]))
    assert [(each.name, each.hash) for each in one.templates] == [
        (variant.name, variant.prompt.hash) for variant in first.variants
    ]
    assert one.templates[0] == two.templates[0] and one.templates[1].hash != two.templates[1].hash
    assert any(one.templates[1].hash in notice for notice in bench.notices)
    # Other judgments are held out by themselves.
    lines = bench.files["relevance"].read_text().splitlines(keepends=True)
    bench.files["relevance"].write_text("".join(lines[:-1]))
    assert (await bench.compare(blunt, sharp, confirm=True)).earlier_looks == []
    assert len(read_looks(bench.log)) == 6


@pytest.mark.parametrize("split", ["even", "all", "a file"])
async def test_topics_that_another_choice_has_shown_are_looked_at(
    bench: Bench, blunt: Path, sharp: Path, tmp_path: Path, split: str
) -> None:
    if split == "a file":
        (tmp_path / "split").write_text("".join(f"{number}\n" for number in range(5, 13)))
    await bench.compare(blunt, sharp)
    await bench.compare(blunt, sharp, split=str(tmp_path / "split") if split == "a file" else split)
    found = await bench.compare(blunt, sharp, confirm=True)
    own, other, _, _ = read_looks(bench.log)
    assert found.earlier_looks == [other] and set(other.topics) & {str(number) for number in range(2, 17, 2)}
    assert any("before this one: 1;" in notice for notice in bench.notices)


@pytest.mark.parametrize("confirm", [True, False])
async def test_a_damaged_log_of_looks_is_an_error_before_any_request(
    bench: Bench, blunt: Path, sharp: Path, confirm: bool
) -> None:
    bench.log.write_text("{}\n")
    with raises_at(DataError, f"{bench.log}:1"):
        await bench.compare(blunt, sharp, confirm=confirm)
    assert bench.engine.requests == [] and bench.log.read_text() == "{}\n"


async def test_a_topic_is_in_one_half_whatever_is_drawn_found_or_asked_about(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    odd = {str(number) for number in range(1, 17, 2)}
    lines = bench.files["passages.jsonl"].read_text().splitlines(keepends=True)
    bench.files["passages.jsonl"].write_text("".join(line for line in lines if "passage 1-" not in line))
    for plan in ({}, {"size": 60, "seed": 1}, {"confirm": True}):
        found = await bench.compare(blunt, sharp, split="odd", **plan)
        assert set(found.parts[0].topics) <= odd - {"1"}
        assert all(odd.isdisjoint(part.topics) for part in found.parts[1:])
    bench.flags = {"topic": ("2", "3", "5", "8")}
    found = await bench.compare(blunt, sharp, confirm=True)
    assert [part.topics for part in found.parts] == [["3", "5"], ["2", "8"]]


async def test_judgments_of_every_second_topic_are_parted_too(bench: Bench, blunt: Path, sharp: Path) -> None:
    lines = bench.files["relevance"].read_text().splitlines(keepends=True)
    bench.files["relevance"].write_text("".join(line for line in lines if int(line.split()[0]) % 2))
    found = await bench.compare(blunt, sharp, confirm=True)
    assert [part.topics for part in found.parts] == [["1", "5", "9", "13"], ["3", "7", "11", "15"]]


async def test_a_topic_whose_objects_are_not_found_leaves_the_others_in_their_halves(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    topics = bench.files["topics.xml"]
    topics.write_text(topics.read_text().replace("<objects>tea, coffee</objects>", "", 1))
    script = bench.engine.script

    def answer(request: Any) -> Any:
        return {"first": "none", "second": "none"} if "first" in request.schema["properties"] else script(request)

    bench.engine = ScriptedEngine(answer)
    found = await bench.compare(blunt, sharp, confirm=True)
    assert [part.topics for part in found.parts] == [
        [str(number) for number in range(3, 17, 2)],
        [str(number) for number in range(2, 17, 2)],
    ]


async def test_documents_are_ranked_by_the_weights_of_the_run(bench: Bench, blunt: Path, sharp: Path) -> None:
    script = bench.engine.script

    def answer(request: Any) -> Any:
        said: Any = script(request)
        return said if SHARP in request.messages[0].content.split() else said | {"quality": 2 - said["quality"]}

    bench.engine = ScriptedEngine(answer)
    bench.flags = {"weights__quality": 0.0}
    values = (await bench.compare("judge", sharp)).parts[0].estimates
    assert [of[NDCG].value for of in values.values()] == [1.0, 1.0]
    bench.flags = {"weights__relevance": 0.0}
    values = (await bench.compare("judge", sharp)).parts[0].estimates
    assert values["judge"][NDCG].value < values[str(sharp)][NDCG].value == 1.0


async def test_it_is_told_before_the_engine_starts_that_nothing_can_be_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, collection(tmp_path, topics=11))
    bench.engine = Shut(reader({}).script)
    with pytest.raises(EngineError):
        await bench.compare("judge", bench.wording("sharp", SHARP), confirm=True)
    assert "5 topics held out with a grade above 0: p cannot be below 0.0625" in bench.notices[-1]


async def test_topics_of_which_ndcg_leaves_no_document_out_are_told(bench: Bench, blunt: Path, sharp: Path) -> None:
    lines = bench.files["relevance"].read_text().splitlines(keepends=True)
    bench.files["relevance"].write_text("".join(line for line in lines if not line.startswith("2 0 2-3")))
    found = await bench.compare(blunt, sharp, split="all")
    assert found.notes[-1].startswith("topics with 5 sampled documents or fewer") and found.notes[-1].endswith(": 2")
    assert found.notes == bench.notices[-len(found.notes) :]


def test_the_chance_level_is_the_mean_over_all_orders() -> None:
    judged = {"a": 2.0, "b": 1.0, "c": 0.0, "d": -2.0, "e": 0.333, "f": 2.0}
    for documents in (judged, {name: judged[name] for name in "abc"}):
        orders = {str(number): order for number, order in enumerate(permutations(documents))}
        run = ParsedRun(
            {
                topic: [Candidate(topic, name, rank, -float(rank)) for rank, name in enumerate(order, start=1)]
                for topic, order in orders.items()
            },
            {},
        )
        mean = estimate_grades(run, dict.fromkeys(orders, documents), 5)["nDCG@5"].value
        assert compute_chance_ndcg({"1": documents}).value == pytest.approx(mean)


async def test_a_sample_without_a_relevant_document_is_refused(bench: Bench, blunt: Path, sharp: Path) -> None:
    bench.files["relevance"].write_text("1 0 1-0 0\n1 0 1-1 -2\n")
    with pytest.raises(UsageError, match="--split"):
        await bench.compare(blunt, sharp)
    assert bench.engine.requests == []


async def test_a_comparison_that_was_broken_off_goes_on_where_it_was(bench: Bench, blunt: Path, sharp: Path) -> None:
    bench.engine = Leaving(reader(DULL).script)
    with pytest.raises(EngineError):
        await bench.compare(blunt, sharp, split="all")
    answered = len(bench.engine.requests)
    bench.engine = reader(DULL)
    await bench.compare(blunt, sharp, split="all")
    assert len(bench.engine.requests) == 2 * 96 - answered


async def test_a_sample_file_is_taken_again(bench: Bench, blunt: Path, sharp: Path) -> None:
    path = bench.folder / "sample.tsv"
    first = await bench.compare(blunt, sharp, size=20, file=path)
    content = path.read_bytes()
    bench.engine = reader(DULL)
    again = await bench.compare(blunt, sharp, file=path)
    assert path.read_bytes() == content
    assert bench.engine.requests == []
    assert [part.sample for part in again.parts] == [part.sample for part in first.parts]
    with raises_at(UsageError, path):
        await bench.compare(blunt, sharp, file=path, size=10)


async def test_an_example_of_a_sampled_topic_is_refused(bench: Bench, blunt: Path, sharp: Path) -> None:
    sharp.with_name("sharp.examples.yaml").write_text(
        "- topic: {id: '99', title: 'Is TEA 3 better than coffee'}\n  document: x\n  first: tea\n  second: coffee\n"
        "  answer: {relevance: 1, quality: 1, stance: NO}\n"
    )
    with pytest.raises(UsageError, match="topic 99.*topic 3"):
        await bench.compare(blunt, sharp)
    assert bench.engine.requests == []
    # It is no sampled topic where it is not asked about.
    bench.flags = {"topic": ("1", "2", "4", "5")}
    assert (await bench.compare(blunt, sharp)).verdict.winner == str(sharp)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["judge"], "^judge "),
        (["judge", "stance"], "^stance: .*'stance'.*'judge'"),
        (["judge", "judge"], "^judge: "),
        (["judge", "nothing"], r"nothing\.jinja: "),
    ],
)
async def test_what_cannot_be_compared_is_told_before_anything_is_asked(
    bench: Bench, names: list[str], pattern: str
) -> None:
    with pytest.raises((UsageError, PromptError), match=pattern):
        await bench.compare(*names)
    assert bench.engine.requests == []


async def test_halves_that_are_too_small_are_told_before_anything_is_asked(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    (bench.folder / "half").write_text("1\n")
    with pytest.raises(UsageError, match=r"^1 topics.* 15 .*--split"):
        await bench.compare(blunt, sharp, split="half", confirm=True)
    assert bench.engine.requests == []


class Shut(ScriptedEngine):
    """Lets nobody in."""

    async def complete(self, request: Any) -> Any:
        raise Rejected(401, "no key")


class Leaving(ScriptedEngine):
    """Lets nobody in any more after a hundred answers."""

    async def complete(self, request: Any) -> Any:
        if len(self.requests) == 100:
            raise Rejected(401, "no key")
        return await super().complete(request)


class Refusing(ScriptedEngine):
    """Takes no request of one word about documents of the highest grade."""

    async def complete(self, request: Any) -> Any:
        if SHARP in request.messages[0].content.split() and str(request.origin.document_id).endswith(("-2", "-5")):
            raise Rejected(400, "not this one")
        return await super().complete(request)


async def test_documents_without_an_answer_are_last_and_do_not_help(bench: Bench, blunt: Path, sharp: Path) -> None:
    bench.engine = Refusing(reader({BLUNT: lambda topic, number: number == 2}).script)
    found = await bench.compare(blunt, sharp, aspects=("relevance", "stance"))
    assert len(found.all_failures()) == 2 * 8
    part = found.parts[0]
    assert part.estimates[str(sharp)][NDCG].value < part.estimates[str(blunt)][NDCG].value
    # Over its own documents it has no fault, and over those that both judged the other one has none either.
    assert part.estimates[str(sharp)]["relevance kappa"].value == 1.0
    for measure in ("relevance kappa", "stance macro-F1"):
        change = part.differences[str(sharp), measure]
        assert (change["value"], change["baseline_value"], change["documents"]) == (1.0, 1.0, 4 * 8)


async def test_topics_without_a_relevant_document_are_left_out_of_ndcg_and_told(bench: Bench, blunt: Path) -> None:
    lines = bench.files["relevance"].read_text().splitlines()
    changed = [line[:-1] + "0" if line.startswith("3 ") else line for line in lines]
    bench.files["relevance"].write_text("\n".join(changed) + "\n")
    found = await bench.compare("judge", blunt)
    assert found.notes[-1] == "topics without a grade above 0 among their sampled documents, left out of nDCG: 3"
    assert "3" in found.parts[0].topics
    assert "3" not in found.parts[0].estimates["judge"][NDCG].topics


async def test_objects_that_no_topic_names_are_found_first(bench: Bench, blunt: Path, sharp: Path) -> None:
    topics = bench.files["topics.xml"]
    topics.write_text(topics.read_text().replace("<objects>tea, coffee</objects>", ""))
    script = bench.engine.script

    def answer(request: Any) -> Any:
        fields = request.schema["properties"]
        return {"first": "tea", "second": "coffee"} if "first" in fields else script(request)

    bench.engine = ScriptedEngine(answer)
    found = await bench.compare(blunt, sharp, confirm=True)
    assert {topic.objects for topic in found.topics} == {("tea", "coffee")}
    assert len(bench.engine.requests) == 16 + 2 * 96


def test_pairs_of_sentences_are_compared_by_the_judge_of_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sample_run("sentence_pairs", tmp_path)
    judged = read_records(run / "judgments.jsonl", Judgment, "judgments")
    own = {(each.topic_id, each.document_id): each.grades["coherence"] for each in judged if each.source != "inherited"}
    lines = [f"{topic} 0 {document} {round_grade(grade)}\n" for (topic, document), grade in list(own.items())[:40]]
    (tmp_path / "coherence").write_text("".join(lines))
    copy = tmp_path / "copy.jinja"
    copy.write_text((prompts_folder() / "sentence_pairs" / "judge.jinja").read_text())
    monkeypatch.chdir(tmp_path)
    qrels = read_qrels({"coherence": tmp_path / "coherence"}, get_task("sentence_pairs"))
    config = load_config(run / "config.yaml", {})
    found = asyncio.run(compare_prompts(config, ["judge", str(copy)], qrels, Plan(split="all"), Silent()))
    (part,) = found.parts
    assert len(part.sample) == 40
    assert part.estimates["judge"]["coherence kappa"].value == 1.0 == part.estimates[str(copy)]["coherence kappa"].value
    with raises_at(UsageError, "sentence", "'judge'"):
        asyncio.run(compare_prompts(config, ["judge", "sentence"], qrels, Plan(), Silent()))


class Some:
    """Documents of which some are missing."""

    def __init__(self, missing: set[str]) -> None:
        self.missing = missing

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        return [each for each in document_ids if each in self.missing]

    def get(self, document_id: str) -> Document:
        raise AssertionError("no text is needed")


def pool_of(*sizes: int, topics: int = 5) -> Grades:
    """So many documents of the grades 0, 1, … in each topic."""
    return {
        str(topic): {f"{topic}-{grade}-{n}": float(grade) for grade, size in enumerate(sizes) for n in range(size)}
        for topic in range(topics)
    }


@pytest.mark.parametrize(
    ("sizes", "size", "expected"),
    [((20, 20, 20), 60, [20, 20, 20]), ((50, 2, 9), 100, [45, 10, 45]), ((1, 1, 1), 100, [5, 5, 5])],
)
def test_the_sample_is_as_even_over_grades_as_it_can_be(sizes: tuple[int, ...], size: int, expected: list[int]) -> None:
    sample = draw_sample(pool_of(*sizes), size, 0)
    assert [Counter(each.grade for each in sample)[grade] for grade in range(3)] == expected
    assert len({(each.topic_id, each.document_id) for each in sample}) == sum(expected)


def test_the_sample_is_even_over_topics_too() -> None:
    sample = draw_sample(pool_of(20, 20, 20), 60, 0)
    assert set(Counter((each.topic_id, each.grade) for each in sample).values()) == {4}


def test_few_topics_with_10_documents_are_drawn_rather_than_many_with_fewer() -> None:
    sample = draw_sample(pool_of(30, 3, 4, topics=50), 200, 0)
    assert list(Counter(each.topic_id for each in sample).values()) == [10] * 20
    assert Counter(each.grade for each in sample) == {0.0: 70, 1.0: 60, 2.0: 70}


def test_topics_with_enough_judgments_come_before_others_and_those_before_none() -> None:
    enough = {f"enough {topic}": judged for topic, judged in pool_of(10, 10, topics=3).items()}
    few = {f"few {topic}": judged for topic, judged in pool_of(1, 3, topics=40).items()}
    nothing = {f"nothing {topic}": judged for topic, judged in pool_of(30, topics=40).items()}
    for seed in range(5):
        assert {each.topic_id for each in draw_sample(nothing | few | enough, 30, seed)} == set(enough)
    # No topic has a part of its documents only.
    assert len(draw_sample(few, 50, 0)) == 12 * 4
    assert len(draw_sample(enough, 4, 0)) == 4


def test_grades_are_even_where_topics_have_few_of_them() -> None:
    low = {f"low {topic}": judged for topic, judged in pool_of(20, 20).items()}
    high = {f"high {topic}": judged for topic, judged in pool_of(0, 20, 20).items()}
    counts = Counter(each.grade for each in draw_sample(low | high, 100, 0))
    assert sorted(counts.values()) == [33, 33, 34]


def test_the_sample_depends_on_the_seed_and_not_on_the_order_of_the_file() -> None:
    pool = pool_of(20, 20, 20)
    turned = {topic: dict(reversed(judged.items())) for topic, judged in pool.items()}
    assert draw_sample(pool, 30, 1) == draw_sample(turned, 30, 1)
    assert draw_sample(pool, 30, 1) != draw_sample(pool, 30, 2)


def test_grades_below_0_and_between_whole_grades_are_drawn_as_the_whole_grade_they_count_as() -> None:
    pool = {"1": {"a": -2.0, "b": 0.0, "c": 0.333, "d": 1.667, "e": 2.0, "f": 2.4}}
    assert Counter(each.grade < 1 for each in draw_sample(pool, 2, 0)) == {True: 1, False: 1}


def test_the_order_of_the_sample_does_not_tell_the_grade() -> None:
    sample = draw_sample(pool_of(30, 30, topics=1), 60, 0)
    first = Counter(each.grade for each in sample[:30])
    assert min(first.values()) > 5


def test_only_documents_at_hand_of_topics_that_are_asked_about_are_drawn() -> None:
    topics = [Topic("2", "two"), Topic("1", "one"), Topic("9", "nine")]
    pool, notes = select_judged({"1": {"a": 1.0, "b": 0.0}, "2": {"c": 1.0}, "3": {"d": 2.0}}, topics, Some({"b"}))
    assert list(pool.items()) == [("2", {"c": 1.0}), ("1", {"a": 1.0})]
    assert notes == [
        "topics without a judged document in the corpus: 9",
        "judged documents that are not in the corpus: 1 of 3",
    ]
    with pytest.raises(DataError, match="topics 2, 1, 9"):
        select_judged({"1": {"a": 1.0}}, topics, Some({"a"}))


def test_a_sample_comes_back_as_it_was_written(tmp_path: Path) -> None:
    sample = [Sampled("2", "b", -2.0), Sampled("1", "a", 1.5)]
    write_sample(tmp_path / "sample.tsv", sample)
    assert read_sample(tmp_path / "sample.tsv", {"1": {"a": 1.5}, "2": {"b": -2.0}}) == sample


@pytest.mark.parametrize(
    ("text", "line", "values"),
    [
        ("", "", []),
        ("topic\tdocument\tgrade\n", "", []),
        ("1\ta\t1\n", ":1", ["topic, document, grade"]),
        ("topic\tdocument\tgrade\n1\ta\n", ":2", ["topic, document, grade"]),
        ("topic\tdocument\tgrade\n1\ta b\t1\n", ":2", ["topic, document, grade"]),
        ("topic\tdocument\tgrade\n1\ta\t1\n1\ta\t1\n", ":3", ["topic 1, document a"]),
        ("topic\tdocument\tgrade\n1\ta\t2\n", ":2", ["topic 1, document a", "grade 2, but 1"]),
        ("topic\tdocument\tgrade\n1\tx\t1\n", ":2", ["topic 1, document x"]),
        ("topic\tdocument\tgrade\n\udcff\ta\t1\n", ":2", ["UTF-8"]),
        ("topic\tdocument\tgrade\n" + "1" * 20_000, ":2", ["10,000 bytes"]),
    ],
)
def test_a_sample_that_is_none_is_refused(tmp_path: Path, text: str, line: str, values: list[str]) -> None:
    path = tmp_path / "sample.tsv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with raises_at(DataError, f"{path}{line}", *values):
        read_sample(path, {"1": {"a": 1.0}})


def test_topics_are_parted_by_their_places_or_by_a_file(tmp_path: Path) -> None:
    topics = ["7", "3", "9", "1", "5"]
    assert split_topics(topics, "odd") == (["7", "9", "5"], ["3", "1"])
    assert split_topics(topics, "even") == (["3", "1"], ["7", "9", "5"])
    path = tmp_path / "topics.txt"
    path.write_text("5\n\n3\n77\n")
    assert split_topics(topics, str(path)) == (["3", "5"], ["7", "9", "1"])
    path.write_text("77\n")
    with raises_at(UsageError, tmp_path / "topics.txt", "7, 3, 9, 1, 5"):
        split_topics(topics, str(path))
    path.write_text("7 3\n")
    with raises_at(DataError, f"{path}:1"):
        split_topics(topics, str(path))
    with raises_at(DataError, tmp_path / "none"):
        split_topics(topics, str(tmp_path / "none"))
