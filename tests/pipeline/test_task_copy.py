"""The copy of a task's folder in the folder of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

from touche_llm.cli.tasks import EXAMPLE
from touche_llm.pipeline.config_file import COPY, copy_task
from touche_llm.tasks import get_task


def test_a_template_that_the_task_has_no_longer_is_no_part_of_the_next_copy(tmp_path: Path) -> None:
    own, copy = tmp_path / "mine", tmp_path / "run" / COPY
    shutil.copytree(EXAMPLE, own)
    (own / "old.jinja").write_text((own / "judge.jinja").read_text())
    copy_task(get_task(str(own)), tmp_path / "run")
    (own / "old.jinja").unlink()
    present = {path.name for path in own.glob("*.jinja")}
    # The outputs in the folder are those of the old template.
    copy_task(get_task(str(own)), tmp_path / "run", ["old"])
    assert {path.name for path in copy.glob("*.jinja")} == {*present, "old.jinja"}
    copy_task(get_task(str(own)), tmp_path / "run")
    assert {path.name for path in copy.glob("*.jinja")} == present
