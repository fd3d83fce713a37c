#!/bin/sh
# Install the built wheel in an empty environment outside the checkout and run the demo there.
# Usage: run.sh PYTHON CONSTRAINTS FOLDER_WITH_THE_WHEEL
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check -qq install --constraint "$2" "$3"/touche_llm-*.whl
cd "$work"
samples=$("$work/venv/bin/python" -c 'import touche_llm.cli.demo as d; print(d.SAMPLES)')
case "$samples" in "$work"/*) ;; *) echo "the package was not taken from the wheel: $samples"; exit 1 ;; esac
"$work/venv/bin/python" -c '
from importlib.metadata import distribution
found = distribution("touche-llm")
import touche_llm
assert found.version == touche_llm.__version__, found.version
assert found.metadata["License-Expression"] == "Apache-2.0", found.metadata
assert "Apache License" in found.read_text("licenses/LICENSE")
static = {file.name for file in found.files if file.parent.name == "static"}
assert {"index.html", "lab.css", "lab.js", "bench.js"} <= static, static
'
"$work/venv/bin/touche-llm" demo --out demo
for run in comparative:passages.jsonl controversial:documents.jsonl sentence_pairs:args_processed_04_01.csv; do
    task=${run%%:*} corpus=${run#*:}
    "$work/venv/bin/touche-llm" validate "demo/$task/run.txt" --task "$task" --topics "$samples/$task/topics.xml" \
        --corpus "$samples/$task/$corpus" --index "demo/$task/index"
done
echo "the wheel runs the demo outside the checkout"
