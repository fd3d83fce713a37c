from __future__ import annotations

from pathlib import Path

import pytest

from touche_llm.errors import DataError
from touche_llm.records import Topic
from touche_llm.topics import read_topics

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def topics_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "topics.xml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def one_topic(folder: Path, inside: str) -> Topic:
    (topic,) = read_topics(topics_file(folder, f"<topics><topic>{inside}</topic></topics>"))
    return topic


def test_topics_keep_the_order_of_the_file(tmp_path: Path) -> None:
    numbers = ["10", "2", "33", "1"]
    inside = "".join(f"<topic><number>{n}</number><title>Title {n}</title></topic>" for n in numbers)
    topics = read_topics(topics_file(tmp_path, f"<topics>{inside}</topics>"))
    assert [(topic.id, topic.title) for topic in topics] == [(n, f"Title {n}") for n in numbers]


def test_text_over_several_lines_becomes_one_line(tmp_path: Path) -> None:
    topic = one_topic(
        tmp_path,
        "<number>\n 7\n</number><title>\n  Which is\n\tbetter? </title><objects>\n a\n b ,\n c </objects>"
        "<description> one\r\n two </description><narrative>\nthree   four\n</narrative>",
    )
    assert topic == Topic("7", "Which is better?", "one two", "three four", ("a b", "c"))


@pytest.mark.parametrize(
    ("element", "objects"),
    [
        ("<objects>laptop, desktop</objects>", ("laptop", "desktop")),
        ("<objects>  laptop , desktop</objects>", ("laptop", "desktop")),
        ("<objects>bake, fry food</objects>", ("bake", "fry food")),
        ("<objects></objects>", None),
        ("<objects/>", None),
        ("<objects> \n </objects>", None),
        ("", None),
    ],
)
def test_objects_are_two_trimmed_texts_or_none(tmp_path: Path, element: str, objects: tuple[str, str] | None) -> None:
    assert one_topic(tmp_path, f"<number>1</number><title>T</title>{element}").objects == objects


def test_markup_inside_a_title_keeps_its_words(tmp_path: Path) -> None:
    title = "Is <b>tea</b> or <i>strong <u>coffee</u></i>\n better<!-- sic --> &amp; cheaper?"
    topic = one_topic(tmp_path, f"<number>1</number><title>{title}</title>")
    assert topic.title == "Is tea or strong coffee better & cheaper?"


def test_elements_of_no_known_name_are_ignored(tmp_path: Path) -> None:
    topic = one_topic(tmp_path, "<number>1</number><x>a</x><x>b</x><!-- c --><title>T</title>")
    assert topic == Topic("1", "T")


@pytest.mark.parametrize("declaration", ["", '<?xml version="1.0" encoding="UTF-8"?>\n'])
def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path, declaration: str) -> None:
    text = f"\ufeff{declaration}<topics><topic><number>1</number><title>Käse</title></topic></topics>"
    assert read_topics(topics_file(tmp_path, text)) == [Topic("1", "Käse")]


def test_a_declared_encoding_is_used(tmp_path: Path) -> None:
    topic = "<topic><number>1</number><title>Käse</title></topic>"
    text = f'<?xml version="1.0" encoding="ISO-8859-1"?><topics>{topic}</topics>'
    assert read_topics(topics_file(tmp_path, text.encode("latin-1"))) == [Topic("1", "Käse")]


@pytest.mark.parametrize(
    ("inside", "fragments"),
    [
        ("<title>T</title>", ["topic at position 2", "<number>"]),
        ("<number> </number><title>T</title>", ["topic at position 2", "<number>"]),
        ("<number>4 2</number><title>T</title>", ["topic at position 2", "'4 2'"]),
        ("<number>4\u00a02</number><title>T</title>", ["topic at position 2"]),
        ("<number>4\u200b2</number><title>T</title>", ["topic at position 2", "'4\\u200b2'"]),
        ("<number>42</number>", ["topic 42", "<title>"]),
        ("<number>42</number><title/>", ["topic 42", "<title>"]),
        ("<number>1</number><title>T</title>", ["topic 1:", "twice"]),
        ("<number>42</number><title>T</title><title>U</title>", ["topic 42", "two <title>"]),
        ("<number>42</number><number>43</number><title>T</title>", ["topic 42", "two <number>"]),
        ("<number>42</number><title>T</title><objects>laptop</objects>", ["topic 42", "two objects", "'laptop'"]),
        ("<number>42</number><title>T</title><objects>a, b, c</objects>", ["topic 42", "two objects", "'a, b, c'"]),
        ("<number>42</number><title>T</title><objects>laptop, </objects>", ["topic 42", "two objects"]),
        ("<number>42</number><title>T</title><objects> ,desktop</objects>", ["topic 42", "two objects"]),
    ],
)
def test_a_bad_topic_is_named_with_its_file(tmp_path: Path, inside: str, fragments: list[str]) -> None:
    good = "<topic><number>1</number><title>T</title></topic>"
    path = topics_file(tmp_path, f"<topics>{good}<topic>{inside}</topic></topics>")
    with pytest.raises(DataError) as caught:
        read_topics(path)
    assert str(caught.value).startswith(f"{path}: ")
    for fragment in fragments:
        assert fragment in str(caught.value)


GOOD = "<topics><topic><number>1</number><title>T</title></topic></topics>"
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"", "not well-formed"),
        (b"2 Q0 d 1 1.0 tag\n", "not well-formed"),
        (b"<topics><topic></topics>", "not well-formed"),
        (GOOD.replace("T<", "K\xe4se<").encode("latin-1"), "not well-formed"),
        (f'<?xml version="1.0" encoding="utf-16"?>{GOOD}'.encode(), "encoding"),
        (f'<?xml version="1.0" encoding="klingon"?>{GOOD}'.encode(), "klingon"),
        (f'<?xml version="1.0" encoding="shift_jis"?>{GOOD}'.encode(), "cannot decode"),
        (b"<topics></topics>", "no <topic> element"),
        (b"<html><body>Not found</body></html>", "no <topic> element"),
        (f'<!DOCTYPE t [<!ENTITY l0 "lol">{LAUGHS}]>{GOOD.replace("T<", "&l9;<")}'.encode(), "refused"),
        (f'<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]>{GOOD.replace("T<", "&x;<")}'.encode(), "refused"),
    ],
)
def test_a_file_that_is_no_topics_file_is_refused_by_name(tmp_path: Path, content: bytes, fragment: str) -> None:
    path = topics_file(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_topics(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert fragment in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.xml: cannot read the topics: No such file"):
        read_topics(tmp_path / "nowhere.xml")


@pytest.mark.parametrize(
    ("task", "compares"), [("comparative", True), ("controversial", False), ("sentence_pairs", False)]
)
def test_the_real_topics_are_read(task: str, compares: bool) -> None:
    path = SHARED / task / "topics.xml"
    if not path.exists():
        pytest.skip(f"no {path}")
    topics = read_topics(path)
    assert len({topic.id for topic in topics}) == len(topics) == 50
    assert all(topic.title and topic.description and topic.narrative for topic in topics)
    assert {topic.objects is not None for topic in topics} == {compares}
