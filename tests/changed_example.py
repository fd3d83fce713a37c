"""The task that `tasks new` writes, changed by hand to other labels and aspects."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Touche

LABELS = ("STRONG_PRO", "PRO", "OPEN", "CON", "STRONG_CON")
FIVE = f"stance: {{labels: [{', '.join(LABELS)}], no_side: [OPEN], unanswered: OPEN}}"
TWO_SCALES = "{relevance: 0..2, depth: 0..4}"
INPUTS = ("--topics", "essays/topics.xml", "--corpus", "essays/opinions.jsonl")


def change_example(touche: Touche, stance: str, aspects: str) -> None:
    """Make the task `essays` in the working folder.

    Change labels and aspects in its definition and template.
    """
    assert touche("tasks", "new", "essays").returncode == 0
    path = Path("essays/task.yaml")
    head, rest = path.read_text().split("aspects:\n", 1)
    tail = rest[rest.index("# Limits of a ranking") :]
    tail = tail.replace("support", "depth").replace("stance: macro-F1", "depth: nDCG@10")
    path.write_text(f"{head}aspects: {aspects}\n{stance}\n{tail}")
    template = Path("essays/judge.jinja")
    text = template.read_text().replace("support", "depth").replace("PRO", " ".join(LABELS))
    template.write_text(text.replace("0 to 3", "0 to 2").replace("depth 0 to 2", "depth 0 to 4"))


def write_qrels() -> tuple[str, ...]:
    """Write judgments of `depth` and of stances for all opinions.

    Returns the options that name them.
    """
    documents = [(topic, number) for topic in (1, 2) for number in range(1, 6)]
    Path("depth.txt").write_text(
        "".join(f"{topic} 0 opinion-{n} {n - 1}\n" for topic, n in documents)
    )
    Path("stance.txt").write_text(
        "".join(f"{topic} 0 opinion-{n} {LABELS[n - 1]}\n" for topic, n in documents)
    )
    return ("--qrels", "depth=depth.txt", "--stance", "stance.txt")
