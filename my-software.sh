#!/bin/sh
# The entry point that TIRA calls: my-software.sh -i INPUT -o OUTPUT
# The model is a folder named in TOUCHE_LLM_MODEL; `touche-llm tira --help` says what else can be set.
PATH="$(dirname "$0")/.venv/bin:$PATH"
exec touche-llm tira "$@"
