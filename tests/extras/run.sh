#!/bin/sh
# Install the built wheel with each extra in an empty environment outside the checkout, and use its feature there.
# Usage: run.sh PYTHON CONSTRAINTS FOLDER_WITH_THE_WHEEL [EXTRA...]; an extra `none` is the program alone.
set -eu
unset PYTHONPATH || :
python=$1 constraints=$2
wheel=$(echo "$3"/touche_llm-*.whl)
shift 3
root=$(cd "$(dirname "$0")/../.." && pwd)
failed=""
for extra in "$@"; do
    work=$(mktemp -d)
    cp -r "$root/tests" "$work/tests"
    [ "$extra" = none ] && name="" || name="$extra"
    if ! {
        "$python" -m venv "$work/venv" &&
            "$work/venv/bin/python" -m pip --disable-pip-version-check -qq install --constraint "$constraints" \
                "$wheel${name:+[$name]}" &&
            (cd "$work" && "$work/venv/bin/python" -m tests.extras.features "$name")
    }; then
        failed="$failed $extra"
    fi
    rm -rf "$work"
done
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
