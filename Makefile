# `make demo` and `make test` need Python 3.11 or later and nothing else; both can be repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What runs need, and what work on the project needs besides.
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.installed
# The CPU build of vLLM exists for Python 3.11. Where pip finds no CPU wheel of torch by itself, say here where one is:
# make test-vllm VLLM_PIP_ARGS="--extra-index-url ADDRESS_OF_PYTORCHS_CPU_WHEELS"
VLLM_PYTHON ?= python3.11
VLLM_VENV := .venv-vllm
VLLM_PIP_ARGS ?=
FAULT_SEED ?= 1
PIP := -m pip --disable-pip-version-check -qq

CHROMIUM := /usr/bin/chromium

.PHONY: help setup demo test nightly nightly-faults nightly-vllm vllm serve-small model test-model test-vllm vllm-shared vllm-own test-browser \
	check format demo-cassette docs regress wheel test-wheel test-extras clean bench bench-small bench-serving-small

help:
	@echo "make demo       set up what runs need, run every task on its sample, offline, and measure the runs"
	@echo "make test       set up the rest and run the tests (offline, about two minutes)"
	@echo "make check      format, lint, types, all of the tests that need neither a browser nor vLLM"
	@echo "make nightly    kill, starve and mislead every command, start and stop servers (about half an hour)"
	@echo "make test-vllm  install the CPU build of vLLM, once for all clones, and run the tests against a real server"
	@echo "make serve-small serve a small real model with it at http://127.0.0.1:8000, to try runs without a GPU"
	@echo "make test-model run every task with that model on vLLM, llama.cpp's server and LiteLLM (half an hour)"
	@echo "make test-browser  open reports and the documentation in Debian's Chromium and use them"
	@echo "make docs       build the documentation in docs/_build/html"
	@echo "make test-wheel build and check the distributions, and run the demo from an empty environment"
	@echo "make test-extras install each extra alone in an empty environment and use its feature (part of make nightly)"
	@echo "make bench-small run the benchmarks that need no vLLM at a small size: do they work?"
	@echo "make bench      run them at the real sizes, which takes 30 to 40 minutes"

$(RUNS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11")'
	@echo "installing into $(VENV), which takes about a minute"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(STAMP): $(RUNS)
	@echo "installing what the tests need into $(VENV), which takes about a minute"
	@$(BIN)/python $(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: $(STAMP)

demo: $(RUNS)
	@$(BIN)/touche-llm demo --overwrite

test: $(STAMP)
	@$(BIN)/python -m pytest -n auto

check: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -n auto -m 'not vllm and not model and not browser and not nightly'

nightly: nightly-faults nightly-vllm test-extras bench-serving-small

# All of the fault harness; `make check` runs a short part of it. FAULT_SEED=N makes other trials.
nightly-faults: $(STAMP)
	@$(BIN)/python -m pytest -n auto -m 'not vllm and not browser' --fault-seed $(FAULT_SEED) tests/faults

# What starts servers of its own.
nightly-vllm: $(STAMP) vllm
	@$(BIN)/python -m pytest -m 'vllm and nightly' tests/vllm

format: $(STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

demo-cassette: $(STAMP)
	@$(BIN)/python -m tests.write_demo_cassette

regress: $(STAMP)
	@$(BIN)/python -m tests.write_regressions

# Quick if this version is installed already, by whichever clone.
vllm:
	@sh tests/vllm/install.sh "$(VLLM_PYTHON)" $(VLLM_VENV) $(VLLM_PIP_ARGS)

# A small real model and its servers, once for all clones; a model of your own: make test-model TOUCHE_LLM_MODEL=FOLDER
model: $(RUNS) vllm
	@sh tests/model/install.sh "$(VLLM_PYTHON)" $(VLLM_VENV)/bin/python

# To try runs without a GPU: a real model, and a weak judge.
serve-small: model
	@$(BIN)/python -m tests.model.serve_small

# The tokenizer of a server that counts no tokens.
$(VENV)/.tokenizer: $(STAMP)
	$(BIN)/python $(PIP) install --constraint constraints.txt transformers
	@touch $@

# TOUCHE_LLM_RECORD=1 records the run in tests/regress_model anew.
test-model: $(STAMP) $(VENV)/.tokenizer model
	@$(BIN)/python -m pytest -m model tests/model

test-vllm: $(STAMP) vllm | $(CHROMIUM)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync vllm-shared vllm-own

# The tests of one shared server, and beside them those that start servers of their own: a start uses one core.
OWN_SERVERS := tests/vllm/test_pooling.py tests/vllm/test_tira.py
vllm-shared:
	@$(BIN)/python -m pytest -m 'vllm and not nightly' tests/vllm $(OWN_SERVERS:%=--ignore=%)
vllm-own:
	@$(BIN)/python -m pytest -m 'vllm and not nightly' $(OWN_SERVERS)

$(CHROMIUM):
	@test "$$(id -u)" = 0 || { echo "$(CHROMIUM) is not there; as root: apt-get install chromium fonts-dejavu-core"; exit 1; }
	apt-get -qq update && apt-get -qq install --yes --no-install-recommends chromium fonts-dejavu-core

test-browser: docs | $(CHROMIUM)
	@$(BIN)/python -m pytest -m browser tests/browser

$(VENV)/.docs: $(STAMP)
	$(BIN)/python $(PIP) install --constraint constraints.txt --editable '.[docs]'
	@touch $@

# Every warning is an error: a link without a target, a page without a place.
docs: $(VENV)/.docs
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

$(VENV)/.packaging: $(STAMP)
	$(BIN)/python $(PIP) install --constraint constraints.txt --editable '.[packaging]'
	@touch $@

# The wheel is built from the source distribution, which therefore is complete.
wheel: $(VENV)/.packaging
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >/dev/null
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/check-wheel-contents dist/*.whl

test-wheel: wheel
	@$(BIN)/hadolint Dockerfile
	@$(BIN)/pre-commit validate-config
	@sh tests/wheel/run.sh "$(PYTHON)" "$(abspath constraints.txt)" "$(abspath dist)"

# Each extra in an empty environment of its own: about ten minutes. Not vllm and ray, with gigabytes of CUDA.
EXTRAS ?= none chatnoir ir-datasets warc elasticsearch pyterrier docs packaging dev
test-extras: wheel
	@sh tests/extras/run.sh "$(PYTHON)" "$(abspath constraints.txt)" "$(abspath dist)" $(EXTRAS)

# Sizes at which nothing can be said, to see that the scripts work; then those of the shared tasks.
bench-small: $(STAMP) | $(CHROMIUM)
	$(BIN)/python -m benchmarks.first_stage --passages 3000 --sentences 6000 --topics 3 --depth 50
	$(BIN)/python -m benchmarks.dense --documents 3000 --dimensions 64 --topics 3 --depth 50
	$(BIN)/python -m benchmarks.judging --topics 3 --depth 50 --passages 500
	$(BIN)/python -m benchmarks.interval_coverage --trials 5
	$(BIN)/python -m benchmarks.growth --topics 1 --passages 300 600 --depth 20
	$(BIN)/python -m benchmarks.start_up --rounds 1
	$(BIN)/python -m benchmarks.lab_latency --topics 2 --depth 50 --passages 500 --edits 3

bench-serving-small: $(STAMP) vllm
	$(BIN)/python -m benchmarks.gpu --cpu --topics 2 --depth 10 --rounds 1

bench: $(STAMP) vllm | $(CHROMIUM)
	$(BIN)/python -m benchmarks.first_stage
	$(BIN)/python -m benchmarks.dense
	$(BIN)/python -m benchmarks.judging
	$(BIN)/python -m benchmarks.interval_coverage
	$(BIN)/python -m benchmarks.gpu --cpu --depth 20 --rounds 3 --concurrency 64 256
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.start_up
	$(BIN)/python -m benchmarks.lab_latency

clean:
	rm -rf $(VENV) $(VLLM_VENV) dist .touche-llm .mypy_cache .pytest_cache .ruff_cache .hypothesis
