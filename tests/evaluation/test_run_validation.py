from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from touche_llm.evaluation.validation import RunProblem, validate_run
from touche_llm.tasks import get_task

TASK = get_task("comparative")
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
LINES = [
    "2 FIRST d1 1 3.5 tag\n",
    "2 SECOND d2 2 2.5 tag\n",
    "2 NEUTRAL d3 3 1.5 tag\n",
    "10 NO d1 1 -1.5 tag\n",
    "10 FIRST d4 2 -2e0 tag\n",
]
VALID = "".join(LINES)


def problems_of(folder: Path, content: str | bytes) -> list[RunProblem]:
    path = folder / "run.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return validate_run(
        path,
        TASK,
        topic_ids={"2", "10"},
        unknown_documents=lambda ids: [
            each for each in ids if each not in ("d1", "d2", "d3", "d4")
        ],
    )


def at(line: int, change: Callable[[str], str]) -> str:
    changed = list(LINES)
    changed[line - 1] = change(changed[line - 1])
    return "".join(changed)


def swap(line: int, old: str, new: str) -> str:
    assert old in LINES[line - 1]
    return at(line, lambda text: text.replace(old, new))


@pytest.mark.parametrize(
    ("content", "line", "fragment"),
    [
        pytest.param(swap(5, " tag", ""), 5, "5 columns", id="five columns"),
        pytest.param(
            "2 FIRST d1 1 3.5 my tag\n", 1, "7 columns, not six: a tag", id="tag with a space"
        ),
        pytest.param(swap(2, "SECOND d2", "SECOND\td2"), 2, "single spaces", id="tab"),
        pytest.param(at(2, lambda text: " " + text), 2, "single spaces", id="leading space"),
        pytest.param(
            swap(2, "SECOND", "Q0"), 2, "stance 'Q0' is none of FIRST, SECOND, NEUTRAL, NO", id="Q0"
        ),
        pytest.param(
            "2 NO d1 0 2 t\n2 NO d2 1 1 t\n", 1, "topic 2: ranks begin at 0", id="rank from 0"
        ),
        pytest.param(
            swap(2, " 2 ", " 1 ").replace("d3 3", "d3 2"), 2, "rank 1, expected 2", id="rank twice"
        ),
        pytest.param(
            swap(5, " 2 ", " ٢ "), 5, "rank '٢' is not an integer", id="rank in other digits"
        ),
        pytest.param(swap(2, "2.5", "3.5"), 2, "ties with line 1", id="tie"),
        pytest.param(
            swap(2, "2.5", "3.49999999"), 2, "ties with line 1", id="tie in single precision"
        ),
        pytest.param(swap(2, "2.5", "4.5"), 2, "is above that of line 1", id="growing score"),
        pytest.param(swap(2, "2.5", "nan"), 2, "score 'nan' is not a finite number", id="nan"),
        pytest.param(
            swap(5, "-2e0", "-2,5"), 5, "score '-2,5' is not a finite number", id="decimal comma"
        ),
        # Python takes these two for numbers; trec_eval's atof reads 0 and -2.
        pytest.param(
            swap(5, "-2e0", "-２"),
            5,
            "score '-２' is not a finite number",
            id="score in other digits",
        ),
        pytest.param(
            swap(5, "-2e0", "-2_0"),
            5,
            "score '-2_0' is not a finite number",
            id="score with underscore",
        ),
        pytest.param(
            swap(2, "d2", "d1"), 2, "topic 2: document d1 is already in line 1", id="duplicate"
        ),
        pytest.param(
            swap(2, "tag", "other"), 2, "tag 'other' differs from 'tag' in line 1", id="two tags"
        ),
        pytest.param(
            VALID.removesuffix("\n"), 5, "does not end with a line feed", id="no last line feed"
        ),
        pytest.param(swap(2, "\n", "\r\n"), 2, "single spaces", id="CRLF"),
        pytest.param("\ufeff" + VALID, 1, "single spaces", id="BOM"),
        pytest.param(at(2, lambda text: "\n" + text), 2, "an empty line", id="empty line"),
        pytest.param(VALID.encode() + b"10 NO d\xff 3 -3 tag\n", 6, "not UTF-8", id="not UTF-8"),
        pytest.param(
            VALID + "10 NO d3 3 -3 " + "t" * 20_000 + "\n",
            6,
            "longer than 10,000 bytes",
            id="over-long",
        ),
        pytest.param("2 FIRST d1 1 3.5 tag\x07\n", 1, "single spaces", id="control character"),
        pytest.param("", 0, "the file is empty", id="empty file"),
        pytest.param(
            VALID + "7 NO d1 1 2 tag\n7 NO d2 2 1 tag\n",
            6,
            "topic 7 is not in the topics",
            id="topic",
        ),
        pytest.param(swap(2, "d2", "d9"), 2, "document d9 is not in the corpus", id="document"),
    ],
)
def test_one_defect_is_one_problem_at_its_line(
    tmp_path: Path, content: str | bytes, line: int, fragment: str
) -> None:
    problems = problems_of(tmp_path, content)
    assert [each.line for each in problems] == [line]
    assert fragment in problems[0].message


def test_topics_and_documents_are_only_checked_where_they_are_given_and_the_first_line_too_many_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "run.txt").write_text(
        "".join(f"99 NO nowhere{n} {n} {-n} tag\n" for n in range(1, 1004))
    )
    (problem,) = validate_run(tmp_path / "run.txt", TASK)
    assert problem.line == 1001 and "topic 99: more than 1000 lines" in problem.message


def test_a_message_holds_nothing_that_a_terminal_would_act_on(tmp_path: Path) -> None:
    problems = problems_of(
        tmp_path, "2\x1b[2J NO d\x1b[2J 1 1 t\x1b[2J\n2\x1b[2J NO d\x1b[2J 3 2 t\n"
    )
    assert problems
    assert [each.message for each in problems if not each.message.isprintable()] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


pieces = [bytes([byte]) for byte in b"2 \t\n\r\v\0-.e\xff\n "]
pieces += [b"2 NO d 1 1 t\n", b"FIRST", b"nan", b"9" * 400, b"\xef\xbb\xbf", b"\xc2\xa0"]
nearly_runs = st.lists(st.sampled_from(pieces)).map(b"".join)


@settings(deadline=None, max_examples=80)
@given(content=st.binary() | nearly_runs)
def test_any_bytes_give_a_list_of_problems(folder: Path, content: bytes) -> None:
    problems = problems_of(folder, content)
    assert problems == sorted(problems)
    assert all(0 <= each.line <= content.count(b"\n") + 1 and each.message for each in problems)
    assert problems or content.strip()


@pytest.mark.parametrize(
    ("task", "stance", "document", "message"),
    [
        ("sentence_pairs", "NEU", "a__1,b__1", "stance 'NEU' is none of PRO, CON"),
        ("sentence_pairs", "PRO", "a__1,b__1,c__1", "not a pair"),
        ("sentence_pairs", "CON", "a__1,a__1", "a sentence paired with itself"),
        ("controversial", "NEUTRAL", "a", "stance 'NEUTRAL' is none of PRO, CON, NEU, NO"),
    ],
)
def test_labels_and_ids_are_those_of_the_task(
    tmp_path: Path, task: str, stance: str, document: str, message: str
) -> None:
    (tmp_path / "run.txt").write_text(f"1 {stance} {document} 1 1.0 t\n")
    (problem,) = validate_run(tmp_path / "run.txt", get_task(task))
    assert (problem.line, message in problem.message) == (1, True)
