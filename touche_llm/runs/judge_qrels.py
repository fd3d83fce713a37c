"""Qrels from a judge's labels, and measures of systems whose unjudged documents are filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from touche_llm.data.files import open_atomic
from touche_llm.data.records import Candidate
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.data.runs.writing import write_candidates
from touche_llm.errors import DataError, UsageError, to_printable
from touche_llm.evaluation.filling.drawn_lists import DrawnDocument, match_drawn, read_drawn_list
from touche_llm.evaluation.filling.labels import bin_labels
from touche_llm.evaluation.filling.pool import SystemPool, make_pool
from touche_llm.evaluation.filling.systems import MAX_HALF_WIDTH, FilledSystems, fill_systems
from touche_llm.evaluation.judges.labels import (
    LabelSet,
    read_label_file,
    take_judgment_labels,
    take_people_labels,
)
from touche_llm.evaluation.qrels import STANCE, Qrels, read_qrels
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.judges import find_judge_task, find_run_files, name_paths, read_judgment_file
from touche_llm.runs.overview import find_run_directory, read_run
from touche_llm.tasks.parts import Scale
from touche_llm.tasks.task import Task

PEOPLE, JUDGE = "people", "judge"
# Systems by team and name.
Systems = Mapping[str, Mapping[str, ParsedRun]]


@dataclass(frozen=True, slots=True)
class QrelsLine:
    """Grade of a document, and who gave it.

    Attributes:
        topic: Id of the topic.
        document: Id of the document.
        grade: Grade.
        origin: `people` or `judge`.
    """

    topic: str
    document: str
    grade: int
    origin: str


def read_judge_labels(
    judge: Path | str,
    task: Task | str | None = None,
    aspect: str | None = None,
    *,
    scale: Scale | None = None,
    skip_bad_labels: bool = False,
) -> LabelSet:
    """Read a judge's labels in one graded aspect.

    Args:
        judge: Folder of a judged run, or file of labels in the form of qrels.
        task: Task of the labels, or its name; None for that of the folder, else `passages`.
        aspect: Graded aspect; None for the first one of the task.
        scale: Scale of the grades in a file; None for that of the task's qrels.
        skip_bad_labels: Whether to leave out labels outside the scale.

    Raises:
        DataError: The folder or file cannot be read, or a label is outside the scale.
        UsageError: The task has no such graded aspect, or it is the stance.
    """
    path = Path(judge)
    known = task if isinstance(task, Task) else find_judge_task(task, [path])
    chosen = choose_aspect(known, aspect)
    if path.is_dir():
        return take_judgment_labels(read_judgment_file(path, known), chosen, known, JUDGE)
    return read_label_file(
        path,
        chosen,
        known,
        name=JUDGE,
        scale=scale,
        skip_bad_labels=skip_bad_labels,
    )


def choose_aspect(task: Task, aspect: str | None) -> str:
    """Return the graded aspect of this name, by default the first one of the task."""
    graded = [known for known in task.judged_aspects if known != STANCE]
    if aspect is None:
        return graded[0]
    if aspect not in graded:
        raise UsageError(
            f"--aspect {aspect:.80}: {task.name} has no such graded aspect; give one of {', '.join(graded)}"
        )
    return aspect


def read_people_labels(path: Path | str, aspect: str, task: Task) -> LabelSet:
    """Read people's grades of one aspect; raise DataError if the file is not of qrels."""
    return take_people_labels(read_qrels({aspect: path}, task), aspect)


def read_teams(texts: Sequence[str]) -> tuple[dict[str, dict[str, ParsedRun]], list[Path]]:
    """Read systems by team and name, and return their files or folders too.

    Args:
        texts: `TEAM=RUN`, or `RUN` for a team of one system with its own name. A run is a run file,
            a run's folder, or a folder with run files.

    Raises:
        DataError: A path has no run.
        UsageError: A run is given twice, or a team has no name.
    """
    runs: list[tuple[str, Path]] = []
    for text in texts:
        team, is_pair, path = text.partition("=")
        if is_pair and (not team or not path):
            raise UsageError(
                f"--systems {text:.80}: must be TEAM=RUN, as --systems ours=runs/first"
            )
        runs.append((to_printable(team), Path(path)) if is_pair else ("", Path(text)))
    return _read_runs(runs)


def _read_runs(
    runs: Iterable[tuple[str, Path]],
) -> tuple[dict[str, dict[str, ParsedRun]], list[Path]]:
    """Read systems by team and name, see `read_teams`.

    Args:
        runs: Team and path of each run; the team is empty for a run that is a team of its own.
    """
    teams: dict[Path, str] = {}
    for team, path in runs:
        for file in find_run_files(path):
            if file in teams:
                raise UsageError(f"{file}: is given twice; name each run once")
            teams[file] = team

    systems: dict[str, dict[str, ParsedRun]] = {}
    for name, file in name_paths(list(teams)).items():
        systems.setdefault(teams[file] or name, {})[name] = read_run(file)
    return systems, list(teams)


def check_independence(judge: Path, systems: Iterable[Path]) -> list[Path]:
    """Return the runs of which it is not known whether the judge made them.

    Raises:
        UsageError: A run was made with the judge's model and prompt.
    """
    own = _describe_judge(judge)
    unknown: list[Path] = []
    for path in systems:
        directory = find_run_directory(path)
        other = None if directory is None else _describe_judge(directory.path)
        if own is None or other is None:
            unknown.append(path)
        elif own == other:
            raise UsageError(
                f"{path}: the judge's model and prompt made this run, so its labels favour it; leave the run "
                "out, take another judge, or give --allow-own-judge"
            )
    return unknown


def _describe_judge(path: Path) -> tuple[str, str] | None:
    """Return model and prompt of a run's judge stage; None if they are not known."""
    if not path.is_dir():
        return None
    stages = RunDirectory(path).read_metadata().stages
    if stages.judge is None:
        return None
    return stages.judge.llm.model.name, stages.prompts.get("judge", "")


def list_pool(systems: Systems, depth: int) -> dict[str, list[str]]:
    """Return the first documents of all systems, by topic, in the order in which they are found."""
    pool: dict[str, dict[str, None]] = {}
    for members in systems.values():
        for run in members.values():
            for topic, ranking in run.rankings.items():
                found = pool.setdefault(topic, {})
                found.update(dict.fromkeys(item.document_id for item in ranking[:depth]))
    return {topic: list(documents) for topic, documents in pool.items()}


def make_qrels(
    judge: LabelSet,
    people: LabelSet | None = None,
    pool: Mapping[str, Sequence[str]] | None = None,
) -> list[QrelsLine]:
    """Return the grades of people, and those of the judge for other documents.

    Args:
        judge: Labels of a judge.
        people: Labels of people; None if there are none.
        pool: Documents to keep, by topic; None for all.

    Raises:
        UsageError: The scales of people and judge differ.
    """
    if people is not None and people.scale != judge.scale:
        raise UsageError(
            f"{judge.aspect}: the judge's scale is {judge.scale}, and that of people {people.scale}, so one file "
            "cannot have both; write the judge's labels alone (without the people's), or give the task a "
            "`qrels_mapping`"
        )

    lines: dict[tuple[str, str], QrelsLine] = {}
    for origin, labels in ((PEOPLE, people), (JUDGE, judge)):
        for topic, document in () if labels is None else _list_keys(labels):
            if (topic, document) not in lines and labels is not None:
                grade = int(labels.categories[labels.labels[topic][document]])
                lines[topic, document] = QrelsLine(topic, document, grade, origin)
    if pool is None:
        return list(lines.values())
    keys = [(topic, document) for topic, documents in pool.items() for document in documents]
    return [lines[key] for key in keys if key in lines]


def _list_keys(labels: LabelSet) -> list[tuple[str, str]]:
    return [(topic, document) for topic, of_topic in labels.labels.items() for document in of_topic]


def list_unlabelled(
    pool: Mapping[str, Sequence[str]], lines: Iterable[QrelsLine]
) -> dict[str, list[str]]:
    """Return the documents of a pool that have no grade, by topic."""
    known = {(line.topic, line.document) for line in lines}
    missing = {
        topic: [document for document in documents if (topic, document) not in known]
        for topic, documents in pool.items()
    }
    return {topic: documents for topic, documents in missing.items() if documents}


def write_qrels(path: Path, lines: Sequence[QrelsLine]) -> Path:
    """Write qrels, and the origin of each line in a file beside them, whose path is returned."""
    origins = path.with_name(f"{path.name}.origins.tsv")
    with open_atomic(path) as stream:
        for line in lines:
            stream.write(f"{line.topic} 0 {line.document} {line.grade}\n".encode())
    with open_atomic(origins) as stream:
        stream.write(b"topic\tdocument\tgrade\torigin\n")
        for line in lines:
            stream.write(f"{line.topic}\t{line.document}\t{line.grade}\t{line.origin}\n".encode())
    return origins


def write_as_candidates(path: Path, documents: Mapping[str, Sequence[str]]) -> None:
    """Write documents as a first stage that `--candidates` takes."""
    rankings = [
        [
            Candidate(topic, document, rank, -float(rank))
            for rank, document in enumerate(of_topic, start=1)
        ]
        for topic, of_topic in documents.items()
    ]
    write_candidates(path, rankings, "qrels")


def make_system_pool(judge: LabelSet, people: LabelSet, systems: Systems, depth: int) -> SystemPool:
    """Return the pool of the first documents of systems.

    Raises:
        DataError: A system has no topic that people judged, or people judged no document that the
            judge labelled.
        UsageError: There is no system.
    """
    rankings: dict[str, dict[str, dict[str, list[str]]]] = {}
    for team, members in systems.items():
        for name, run in members.items():
            if not run.rankings.keys() & people.labels.keys():
                raise DataError(
                    f"{name}: has no topic of the people's qrels; give runs and qrels of the same topics"
                )
            ranking = {
                topic: [item.document_id for item in documents]
                for topic, documents in run.rankings.items()
            }
            rankings.setdefault(team, {})[name] = ranking

    if not any(key in people for key in _list_keys(judge)):
        raise DataError(
            "the judge labels no document that people judged, so its errors are not known; let it judge "
            "the documents of the qrels too (write them as a run for --candidates)"
        )
    labels, label_count = bin_labels(judge, people)
    return make_pool(
        rankings,
        people.labels,
        labels,
        depth=depth,
        highest_grade=len(people.categories) - 1,
        label_count=label_count,
    )


def fill(
    judge: LabelSet,
    people: LabelSet,
    systems: Systems,
    *,
    depth: int = 5,
    drawn: Iterable[DrawnDocument] = (),
    max_half_width: float = MAX_HALF_WIDTH,
) -> FilledSystems:
    """Measure nDCG of systems, their unjudged documents filled in by a judge.

    Args:
        judge: Labels of a judge, see `read_judge_labels`.
        people: Labels of people, see `read_people_labels`.
        systems: Runs by team and name, see `read_teams`.
        depth: Cutoff of nDCG.
        drawn: Documents that were drawn and that people judged since.
        max_half_width: Half width of the interval above which a value is refused.

    Raises:
        DataError: See `make_system_pool`.
        UsageError: A drawn document is not in the pool, or people have not judged it.
    """
    pool = make_system_pool(judge, people, systems, depth)
    return fill_systems(pool, match_drawn(pool, drawn), max_half_width)


def fill_unjudged(
    judge: Path | str,
    qrels: Qrels,
    systems: Mapping[str, Sequence[Path | str]],
    task: Task | str | None = None,
    *,
    aspect: str | None = None,
    depth: int = 5,
    drawn: Path | str | None = None,
    max_half_width: float = MAX_HALF_WIDTH,
    scale: Scale | None = None,
    skip_bad_labels: bool = False,
    allow_own_judge: bool = False,
) -> FilledSystems:
    """Measure nDCG of systems whose unjudged documents are filled in by a judge.

    Args:
        judge: Folder of a judged run, or file of labels in the form of qrels, from any tool.
        qrels: Labels of people, see `read_qrels`.
        systems: Runs by team: run files, folders of runs, or folders with run files.
        task: Task of the labels, or its name; None for that of the judge's folder, else `passages`.
        aspect: Graded aspect; None for the first one of the task.
        depth: Cutoff of nDCG.
        drawn: List that `qrels --draw` wrote, whose documents people judged since; None if there is
            none.
        max_half_width: Half width of the interval above which a value is refused.
        scale: Scale of the grades in a file of the judge; None for that of the task's qrels.
        skip_bad_labels: Whether to leave out labels outside the scale.
        allow_own_judge: Whether to measure runs that the judge's model and prompt made.

    Returns:
        Values with two 95 % intervals, and bounds; `to_rows` lists them by system.

    Raises:
        DataError: A file cannot be read, or people judged no document that the judge labelled.
        UsageError: There is no system, the judge made one of the runs, or people have not judged a
            drawn document.
    """
    path = Path(judge)
    known_task = task if isinstance(task, Task) else find_judge_task(task, [path])
    chosen_aspect = choose_aspect(known_task, aspect)
    labels = read_judge_labels(
        path,
        known_task,
        chosen_aspect,
        scale=scale,
        skip_bad_labels=skip_bad_labels,
    )
    named_runs = [(team, Path(run)) for team, runs in systems.items() for run in runs]
    teams, files = _read_runs(named_runs)
    if not allow_own_judge:
        check_independence(path, files)
    return fill(
        labels,
        take_people_labels(qrels, chosen_aspect),
        teams,
        depth=depth,
        drawn=() if drawn is None else read_drawn_list(Path(drawn)),
        max_half_width=max_half_width,
    )
