# make demo | test | lint | bench | wheel: each sets up .venv first, once; `make clean` removes it.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
# The first of these that is Python 3.11 or newer; PYTHON=... overrides.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
TORCH := torch==2.13.0
TESTS ?=
BENCH ?=

.PHONY: demo test coverage torch bench wheel docs clean lint lint-ruff lint-format lint-types lint-imports

## replay a bundled sample through three policies
demo: $(VENV)/installed
	$(BIN)/vtsim replay traces/samples/multi-turn.json

## the whole test suite (TESTS="-k word tests/unit" for a part, TESTS=-rfEs for why tests skip)
test: $(VENV)/dev
	$(BIN)/python -m pytest $(TESTS)

## the suite again, with the branches it takes in what decides
coverage: $(VENV)/dev
	$(BIN)/python -m pytest --cov --cov-report= $(TESTS)
	$(BIN)/coverage report --include='vtsim/memory/*,vtsim/engine/*,policies/*,vtsim/policies/*' --fail-under=95

## torch's CPU build beside it, for the tests that need torch (they skip without), where a wheel of
## it lies on this disk: from an index torch is gigabytes of CUDA
torch: $(VENV)/dev
	@if $(PIP) install --dry-run --no-deps --quiet --report - $(TORCH) 2>/dev/null | grep -q '"url": "file:.*cpu'; \
	then $(PIP) install $(TORCH); \
	else echo "no CPU build of $(TORCH) on this disk: tests that need torch skip"; fi

lint: lint-ruff lint-format lint-types lint-imports

lint-ruff: $(VENV)/dev
	$(BIN)/ruff check .

lint-format: $(VENV)/dev
	$(BIN)/ruff format --check --quiet .

lint-types: $(VENV)/dev
	$(BIN)/mypy

lint-imports: $(VENV)/dev
	$(BIN)/lint-imports --no-logo

## CPU-seconds of the engine beside the rate of a bare SimPy loop
bench: $(VENV)/installed
	$(BIN)/python bench/engine.py $(BENCH)

## dist/*.whl and dist/*.tar.gz
wheel: $(VENV)/dev
	rm -rf dist build
	$(BIN)/python -m build --quiet

## docs/ as a site in build/site
docs: $(VENV)/dev
	$(PIP) install --group docs
	$(BIN)/mkdocs build

clean:
	rm -rf $(VENV) build dist *.egg-info .coverage .mypy_cache .ruff_cache .pytest_cache

$(VENV)/pip:
	@test -n "$(PYTHON)" || { echo "vtsim needs Python 3.11 or newer; name it with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

# An editable install: code is read where it lies, so only pyproject.toml asks for it again.
$(VENV)/installed: $(VENV)/pip pyproject.toml
	$(PIP) install --editable .
	@touch $@

$(VENV)/dev: $(VENV)/installed
	$(PIP) install --group dev
	@touch $@
