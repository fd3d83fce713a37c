from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.expect import raises_at
from touche_llm.data.records import Topic
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import DataError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def topics_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "topics.xml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def one_topic(folder: Path, inside: str) -> Topic:
    (topic,) = read_topics(topics_file(folder, f"<topics><topic>{inside}</topic></topics>"))
    return topic


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "UTF-16"])
def test_a_declared_encoding_is_used(tmp_path: Path, encoding: str) -> None:
    topic = "<topic><number>1</number><title>Käse\tb</title></topic>"
    text = f'<?xml version="1.0" encoding="{encoding}"?><topics>{topic}</topics>'
    assert read_topics(topics_file(tmp_path, text.encode(encoding))) == [Topic("1", "Käse b")]


def test_text_over_several_lines_becomes_one_line(tmp_path: Path) -> None:
    topic = one_topic(
        tmp_path,
        "<number>\n 7\n</number><title>\n  Which is\n\tbetter? </title><objects>\n a\n b ,\n c </objects>"
        "<description> one\r\n two </description><narrative>\nthree   four\n</narrative>",
    )
    assert topic == Topic("7", "Which is better?", "one two", "three four", ("a b", "c"))


GOOD = "<topics><topic><number>1</number><title>T</title></topic></topics>"
OBJECTS = GOOD.replace("</title>", "</title><objects>{}</objects>")
SECOND = GOOD.replace("</topics>", "<topic>{}</topic></topics>")
LINE = '{"qid": "1", "query": "Q"}\n'


@pytest.mark.parametrize(
    ("content", "line", "fragments"),
    [
        (GOOD[:-3], "", ["cut off"]),
        (GOOD.replace("T<", "K\xe4se<").encode("latin-1"), "", ["not well-formed"]),
        (f'<?xml version="1.0" encoding="utf-16"?>{GOOD}', "", ["encoding"]),
        ("<html><body>Not found</body></html>", "", ["looks like a web page"]),
        (f'<!DOCTYPE topics SYSTEM "topics.dtd">{GOOD}', "", ["DTD"]),
        (GOOD + " " * 2**22, "", ["larger than 4,194,304 bytes"]),
        (GOOD.replace("1<", "1" * 1_001 + "<"), "", ["up to 1,000"]),
        (OBJECTS.format("['a', " + "[" * 9_000), "", ["topic 1", "<objects>"]),
        (OBJECTS.format("laptop"), "", ["topic 1", "<objects>", "'laptop'"]),
        (OBJECTS.format("Tea, tea"), "", ["topic 1", "two different", "Tea, tea"]),
        (
            SECOND.format("<number>4 2</number><title>T</title>"),
            "",
            ["topic at position 2", "'4 2'"],
        ),
        (SECOND.format("<number>42</number>"), "", ["topic 42", "<title>"]),
        (SECOND.format("<number>1</number><title>T</title>"), "", ["topic 1:", "twice"]),
        (LINE + '{"qid": "2"\n', ":2", ["not JSON"]),
        (
            LINE + '{"qid": "2", "query": "Q", "original_query": {"narrative": 1}}\n',
            "",
            ["topic 2", "<narrative>"],
        ),
        *(
            (
                LINE + f'{{"qid": "2", "query": "Q", "original_query": {{"objects": {bad}}}}}\n',
                "",
                ["topic 2", "<objects>"],
            )
            for bad in ("\"('a', x)\"", "1", '["a", "b", 3]')
        ),
    ],
)
def test_a_bad_file_or_topic_is_named(
    tmp_path: Path, content: str | bytes, line: str, fragments: list[str]
) -> None:
    path = topics_file(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_topics(path)
    assert str(caught.value).startswith(f"{path}{line}: ")
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_topics_of_beir_have_their_text_as_title(tmp_path: Path) -> None:
    lines = [
        {
            "_id": "1",
            "text": "Should teachers get tenure?",
            "metadata": {"description": "D.", "narrative": " N.\n N."},
        },
        {"_id": "2", "text": "Is vaping safe?", "metadata": {}},
        {"_id": "3", "text": "Ban guns?"},
    ]
    path = topics_file(tmp_path, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
    assert read_topics(path) == [
        Topic("1", "Should teachers get tenure?", "D.", "N. N."),
        Topic("2", "Is vaping safe?"),
        Topic("3", "Ban guns?"),
    ]


# As TIRA's loader writes it: through an XML library that indents, and through Python's str().
QUERIES_XML = """<topics ir-datasets-id="argsme/2020/touche">
 <topic number="2">
  <query>
   Which is better &amp; why?
  </query>
  <original_query>
   <query_id>
    2
   </query_id>
   <title>
    Which is better &amp; why?
   </title>
   <objects>
    ('laptop', "baker's, desktop")
   </objects>
   <description>
    About both.
   </description>
   <narrative>
   </narrative>
  </original_query>
 </topic>
 <topic number="10">
  <query>
   Tea?
  </query>
 </topic>
</topics>
"""
QUERIES_JSON = [
    {
        "qid": "2",
        "query": "Which is better & why?",
        "original_query": {
            "query_id": "2",
            "title": "Which is\nbetter & why?",
            "objects": ["laptop", " baker's, desktop "],
            "description": " About both.",
            "narrative": "",
        },
    },
    {"qid": 10, "query": " Tea? "},
]


@pytest.mark.parametrize(
    "content",
    [
        QUERIES_XML,
        "\ufeff" + "\r\n\r\n".join(map(json.dumps, QUERIES_JSON)) + "\r\n\r\n",
    ],
    ids=["XML", "JSON Lines"],
)
def test_the_topics_of_tira_are_read_whatever_the_name(tmp_path: Path, content: str) -> None:
    assert read_topics(topics_file(tmp_path, content)) == [
        Topic("2", "Which is better & why?", "About both.", "", ("laptop", "baker's, desktop")),
        Topic("10", "Tea?"),
    ]


def test_too_many_topics_for_a_file_are_refused_with_a_remedy_that_works(tmp_path: Path) -> None:
    lines = [f'{{"qid": "{n}", "query": "Is number {n} better?"}}\n' for n in range(100_000)]
    path = tmp_path / "queries.jsonl"
    path.write_text("".join(lines))
    with raises_at(DataError, path, "4,194,304 bytes", "divide the topics among several files"):
        read_topics(path)

    topics: list[Topic] = []
    for part in range(2):
        path.write_text("".join(lines[part::2]))
        topics += read_topics(path)
    assert len({topic.id for topic in topics}) == 100_000
