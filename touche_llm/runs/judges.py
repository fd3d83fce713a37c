"""Judges: runs' folders and files of labels, and their agreement with people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from touche_llm.data.files import read_records
from touche_llm.data.measure import Measure, make_headline_ndcg
from touche_llm.data.recognize import recognize
from touche_llm.data.records import Judgment
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import DataError, UsageError, to_printable
from touche_llm.evaluation.judges.labels import (
    LabelSet,
    read_label_file,
    take_judgment_labels,
    take_people_labels,
)
from touche_llm.evaluation.judges.study import JudgeStudy, study_judges
from touche_llm.evaluation.qrels import Qrels
from touche_llm.judging.grades import check_judgments
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.overview import read_run
from touche_llm.tasks import get_task
from touche_llm.tasks.parts import Scale
from touche_llm.tasks.task import Task

# Task of files of labels: the usual scale of relevance, from 0 to 3.
DEFAULT_TASK = "passages"


def agree(
    judges: Sequence[Path | str],
    qrels: Qrels,
    task: Task | str | None = None,
    *,
    systems: Sequence[Path | str] = (),
    second: Qrels | None = None,
    scale: Scale | None = None,
    skip_bad_labels: bool = False,
) -> JudgeStudy:
    """Measure how far judges agree with people.

    Args:
        judges: Folders of judged runs, or files of labels in the form of qrels, from any tool. A
            file has labels of one aspect, so the qrels must have that aspect alone.
        qrels: Labels of people, see `read_qrels`.
        task: Task of the labels, or its name; None for that of the first folder, else `passages`.
        systems: Runs to rank by people's grades and by each judge's: run files, folders of runs, or
            folders with run files.
        second: Labels of other people, measured like a judge: the level that a judge can reach.
        scale: Scale of the grades in files of judges; None for that of the qrels.
        skip_bad_labels: Whether to leave out labels outside the scale, and count them.

    Returns:
        Figures with intervals over topics, differences between the judges, and the order of the
        systems; `to_rows` lists them all.

    Raises:
        DataError: A file cannot be read, a label is outside the scale (names file and line), or a
            judge labels no document of people.
        UsageError: No judge is given, one is given twice, a file is given for several aspects, or
            one system alone is to be ranked.
    """
    paths = [Path(judge) for judge in judges]
    if not paths:
        raise UsageError("no judge given; give a file of labels, or the folder of a judged run")
    known_task = task if isinstance(task, Task) else find_judge_task(task, paths)

    people = [take_people_labels(qrels, aspect) for aspect in qrels.aspects]
    label_sets: list[LabelSet] = []
    if second is not None:
        for aspect in second.aspects:
            label_sets.append(take_people_labels(second, aspect, "second assessors"))
    for name, path in name_paths(paths).items():
        labels_of_judge = _read_judge(
            name,
            path,
            qrels.aspects,
            known_task,
            scale=scale,
            skip_bad_labels=skip_bad_labels,
        )
        label_sets.extend(labels_of_judge)

    runs = read_systems([Path(system) for system in systems])
    return study_judges(people, label_sets, runs, choose_system_measures(known_task))


def find_judge_task(name: str | None, judges: Iterable[Path]) -> Task:
    """Return the task of this name; without one that of the first folder of a run, else `passages`."""
    if name is not None:
        return get_task(name)
    for path in judges:
        if path.is_dir():
            return RunDirectory(path).read_task()
    return get_task(DEFAULT_TASK)


def choose_system_measures(task: Task) -> dict[str, Measure]:
    """Return the measure of systems by graded aspect: the official one, else nDCG@5."""
    return {
        aspect: task.official_measures.get(aspect, make_headline_ndcg(aspect))
        for aspect in task.aspects
    }


def name_paths(paths: Sequence[Path]) -> dict[str, Path]:
    """Return paths by name: that of the file or folder, or the whole path if several have it.

    Raises:
        UsageError: A path is given twice.
    """
    short_names = [path.resolve().name.removesuffix(".gz").removesuffix(".txt") for path in paths]
    counts = Counter(short_names)
    named: dict[str, Path] = {}
    for path, short_name in zip(paths, short_names, strict=True):
        is_unique = counts[short_name] == 1
        name = to_printable(short_name if is_unique else str(path))
        if name in named:
            raise UsageError(f"{path}: is given twice; name each one once")
        named[name] = path
    return named


def _read_judge(
    name: str,
    path: Path,
    aspects: Sequence[str],
    task: Task,
    *,
    scale: Scale | None,
    skip_bad_labels: bool,
) -> list[LabelSet]:
    """Read the labels of a judge in the aspects of the qrels."""
    if path.is_dir():
        judgments = read_judgment_file(path, task)
        return [take_judgment_labels(judgments, aspect, task, name) for aspect in aspects]

    if len(aspects) > 1:
        raise UsageError(
            f"{path}: a file has labels of one aspect, and the qrels have {', '.join(aspects)}; give the qrels of "
            "its aspect alone"
        )
    labels = read_label_file(
        path,
        aspects[0],
        task,
        name=name,
        scale=scale,
        skip_bad_labels=skip_bad_labels,
    )
    return [labels]


def read_judgment_file(folder: Path, task: Task) -> list[Judgment]:
    """Read the judgments of a run's folder.

    Raises:
        DataError: The folder has no finished judgments, or a judgment does not fit the task.
        UsageError: The run is of another task.
    """
    directory = RunDirectory(folder)
    directory.check_finished("judge")
    file = directory.judgments_file
    if not file.is_file():
        raise DataError(
            f"{folder}: no {file.name}; give the folder of a judged run, or a file of labels"
        )
    if directory.config_file.exists():
        own = directory.read_task()
        if own.name != task.name:
            raise UsageError(
                f"{folder}: a run of {own.name}, not of {task.name}; compare judges of one task (--task {own.name})"
            )

    judgments = read_records(file, Judgment, "judgments")
    check_judgments(judgments, task.question, file)
    return judgments


def read_systems(paths: Sequence[Path]) -> dict[str, ParsedRun]:
    """Read runs by name, those of folders without a run of their own too.

    Raises:
        DataError: A path has no run.
        UsageError: A run is given twice, or one alone.
    """
    files: list[Path] = []
    for path in paths:
        files += find_run_files(path)
    if len(files) == 1:
        raise UsageError(f"systems: {files[0]} alone has no order; give two runs or more")
    return {name: read_run(path) for name, path in name_paths(files).items()}


def find_run_files(path: Path) -> list[Path]:
    """Return a run file or a run's folder itself, or else the run files in a folder.

    Raises:
        DataError: The folder has no run file.
    """
    is_run = not path.is_dir() or RunDirectory(path).config_file.exists()
    if is_run:
        return [path]

    run_files: list[Path] = []
    for file in sorted(path.iterdir()):
        if file.is_file() and recognize(file).kind == "run":
            run_files.append(file)
    if not run_files:
        raise DataError(
            f"{path}: no run file in this folder; give runs, or a folder with run files"
        )
    return run_files
