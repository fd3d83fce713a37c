#!/bin/sh
# Install the built wheel in an empty environment outside the checkout and run the demo there.
# Usage: run.sh PYTHON CONSTRAINTS FOLDER_WITH_THE_WHEEL
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check -qq install --constraint "$2" "$3"/touche_llm-*.whl
cd "$work"
sample=$("$work/venv/bin/python" -c 'import touche_llm.cli.demo as d; print(d.SAMPLES / "comparative")')
case "$sample" in "$work"/*) ;; *) echo "the package was not taken from the wheel: $sample"; exit 1 ;; esac
"$work/venv/bin/touche-llm" demo --out demo
"$work/venv/bin/touche-llm" validate demo/run.txt --task comparative --topics "$sample/topics.xml" \
    --corpus "$sample/passages.jsonl" --index demo/index
echo "the wheel runs the demo outside the checkout"
