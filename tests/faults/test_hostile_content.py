"""Every reader of files answers, or raises an error of ours: whatever the file holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.faults.tally import Tally
from touche_llm.config.files import load_config
from touche_llm.corpus.args_me import read_arguments
from touche_llm.corpus.json_lines import read_passages
from touche_llm.data.runs.reading import read_run
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import DataError, ToucheError
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.evaluation.validation import validate_run
from touche_llm.judging.stance_labels import read_thresholds
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.settings.yaml_text import YamlError, parse_yaml
from touche_llm.tasks import get_task

# What tends to break readers: nothing, white space, controls, the other direction, half a pair,
# brackets, digits.
TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "\x00",
            "\ufeff",
            "\u202e",
            "\u2028",
            "\x85",
            "a\tb",
            "1e999",
            "-0",
            "NaN",
            "null",
            "١",
            "<|im_end|>",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.integers(10**3, 10**5).map(lambda length: "x" * length),
)
WORDS = st.one_of(st.sampled_from(["1", "2", "d1", "d2", "Q0", "FIRST", "NO", "0", "3"]), TEXTS)
NUMBERS = st.one_of(
    st.integers(-3, 4),
    st.sampled_from([2**63, -(2**63) - 1, 2**64, 10**400, 1e308, -0.0, 0.5, True, None]),
    st.floats(allow_nan=False, allow_infinity=False),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(TEXTS, NUMBERS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


def damaged(content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Some content, now and then with bytes cut out, put in or changed anywhere."""

    @st.composite
    def change(draw: st.DrawFn) -> bytes:
        data = draw(content)
        if draw(st.integers(0, 2)):
            return data
        start = draw(st.integers(0, len(data)))
        stop = draw(st.integers(start, min(len(data), start + 40)))
        inside = draw(
            st.one_of(
                st.binary(max_size=6),
                st.sampled_from([b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\x00"]),
            )
        )
        return data[:start] + inside + data[stop:]

    return change()


def records(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with these fields, of which now and then one is missing, of another kind, or too many."""
    wrong = st.dictionaries(st.one_of(st.sampled_from(sorted(fields)), TEXTS), JSON, max_size=1)
    most = st.fixed_dictionaries({}, optional=fields)
    whole = st.fixed_dictionaries(fields)
    return st.one_of(
        whole, whole, most, st.tuples(whole, wrong).map(lambda pair: pair[0] | pair[1])
    )


def json_lines(record: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Files of one JSON value a line."""

    def written(values: list[Any]) -> bytes:
        # Half a surrogate pair and 1e400 are written as they are.
        return "".join(json.dumps(value) + "\n" for value in values).encode(
            "utf-8", "surrogatepass"
        )

    return damaged(st.lists(record, max_size=5).map(written))


def columns(*kinds: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Files of lines with these columns, separated by spaces or something else."""
    line = st.tuples(st.sampled_from([" ", "  ", "\t", "\u00a0"]), st.tuples(*kinds)).map(
        lambda pair: pair[0].join(pair[1])
    )
    ends = st.sampled_from(["\n", "\r\n", "\r", ""])
    return damaged(
        st.tuples(st.lists(line, max_size=6), ends).map(
            lambda pair: (pair[1] or "\n").join(pair[0]).encode()
        )
    )


ELEMENTS = st.sampled_from(
    ["topic", "number", "title", "objects", "description", "narrative", "query", "original_query"]
)
# Some texts are markup, so that entities and declarations occur as well.
MARKUP = st.one_of(
    TEXTS,
    st.sampled_from(
        ["&amp;", "&x;", "<!DOCTYPE t>", "<![CDATA[a]]>", "<!-- a -->", "('a', 'b')", "a,b"]
    ),
)
XML = st.recursive(
    MARKUP,
    lambda inner: st.tuples(ELEMENTS, st.lists(inner, max_size=4)).map(
        lambda pair: f"<{pair[0]}>{''.join(pair[1])}</{pair[0]}>"
    ),
    max_leaves=10,
)
TOPICS = st.one_of(
    damaged(
        st.lists(XML, max_size=4).map(lambda parts: f"<topics>{''.join(parts)}</topics>".encode())
    ),
    damaged(
        st.lists(st.tuples(WORDS, TEXTS, MARKUP), max_size=4).map(
            lambda topics: "".join(
                ["<topics>"]
                + [
                    f"<topic><number>{n}</number><title>{t}</title><objects>{o}</objects></topic>"
                    for n, t, o in topics
                ]
                + ["</topics>"]
            ).encode()
        )
    ),
    json_lines(
        records(
            qid=st.one_of(WORDS, NUMBERS),
            query=TEXTS,
            original_query=records(title=TEXTS, objects=JSON),
        )
    ),
)
PASSAGES = json_lines(records(id=WORDS, contents=TEXTS))
ARGUMENTS = damaged(
    st.lists(st.tuples(WORDS, TEXTS, TEXTS, TEXTS), max_size=4).map(
        lambda rows: (
            b"id,conclusion,premises,context,sentences\n"
            + "".join(
                f"{ident},{conclusion},\"[{{'text': {premise!r}, 'stance': 'PRO', 'annotations': []}}]\",,"
                f"\"[{{'sent_id': '{ident}', 'sent_text': {sentence!r}}}]\"\n"
                for ident, conclusion, premise, sentence in rows
            ).encode()
        )
    )
)
RUNS = columns(WORDS, WORDS, WORDS, NUMBERS.map(str), NUMBERS.map(str), WORDS)
RERANKS = json_lines(records(qid=WORDS, docno=WORDS, rank=NUMBERS, score=NUMBERS, text=TEXTS))
QRELS = columns(WORDS, WORDS, WORDS, st.one_of(NUMBERS.map(str), WORDS))
KEYS = st.integers(0, 10**64 - 1).map(lambda number: f"{number:064d}")
CASSETTES = json_lines(
    records(
        key=KEYS,
        kind=WORDS,
        model=WORDS,
        sample=NUMBERS,
        value=st.dictionaries(TEXTS, JSON, max_size=3),
    )
)
# The characters that mean something to YAML, in any order, or values that it wrote, with tails of
# that kind.
SIGNS = st.text(st.sampled_from("[]{}:,-?&*!|>'\"%@`#~<= \n\tab01_.e\u2028\x00"), max_size=60)
YAML = damaged(
    st.one_of(
        SIGNS,
        st.tuples(st.dictionaries(WORDS, JSON, max_size=4).map(json.dumps), SIGNS).map("\n".join),
    ).map(lambda text: text.encode("utf-8", "surrogatepass"))
)

TASK = get_task("comparative")


def replay(path: Path) -> Cache:
    with Cache(path, CacheMode.REPLAY) as cache:
        list(cache.iterate_entries())
        return cache


def skipping(read: Callable[..., Any]) -> Callable[[Path], Any]:
    return lambda path: list(read(path, lambda bad: None))


# The name of the file, what it holds, who reads it, and the errors that may come.
READERS: dict[str, tuple[str, st.SearchStrategy[bytes], Callable[[Path], Any], type[Exception]]] = {
    "topics": ("topics.xml", TOPICS, read_topics, DataError),
    "passages": ("corpus.jsonl", PASSAGES, lambda path: list(read_passages(path)), DataError),
    "passages, bad lines skipped": ("corpus.jsonl", PASSAGES, skipping(read_passages), DataError),
    "arguments": ("args.csv", ARGUMENTS, lambda path: list(read_arguments(path)), DataError),
    "arguments, bad lines skipped": ("args.csv", ARGUMENTS, skipping(read_arguments), DataError),
    "runs": ("run.txt", RUNS, read_run, DataError),
    "runs, validated": ("run.txt", RUNS, lambda path: validate_run(path, TASK), DataError),
    "rerank files": ("rerank.jsonl", RERANKS, read_run, DataError),
    "graded qrels": (
        "qrels.txt",
        QRELS,
        lambda path: read_qrels({"relevance": path}, TASK),
        DataError,
    ),
    "stance qrels": (
        "qrels.txt",
        QRELS,
        lambda path: read_qrels({"stance": path}, TASK),
        DataError,
    ),
    "YAML": ("any.yaml", YAML, lambda path: parse_yaml(path.read_bytes()), YamlError),
    "configurations": ("config.yaml", YAML, lambda path: load_config(path, {}), ToucheError),
    "thresholds": ("thresholds.yaml", YAML, read_thresholds, ToucheError),
    "cassettes": ("cassette.jsonl", CASSETTES, replay, DataError),
}


def check(name: str, folder: Path, tally: Tally, trials: int, start: int) -> None:
    file, contents, read, kind = READERS[name]

    @seed(start)
    @settings(
        max_examples=trials, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(contents)
    def trial(content: bytes) -> None:
        path = folder / file
        path.write_bytes(content)
        try:
            read(path)
        except kind as error:
            tally.add(f"content: {name}", tried=1, refused=1, held=1)
            said = str(error)
            assert said.isprintable() or "\n" in said
            assert len(said) < 4_000
            if kind is not YamlError:
                assert file in said
        else:
            tally.add(f"content: {name}", tried=1, read=1, held=1)

    trial()


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_whatever_a_file_holds_it_is_read_or_refused(
    name: str, tmp_path: Path, tally: Tally, fault_seed: int
) -> None:
    check(name, tmp_path, tally, 100, fault_seed)


@pytest.mark.nightly
@pytest.mark.parametrize("name", READERS)
def test_whatever_thousands_of_files_hold_they_are_read_or_refused(
    name: str, tmp_path: Path, tally: Tally, fault_seed: int
) -> None:
    check(name, tmp_path, tally, 1_500, fault_seed)
