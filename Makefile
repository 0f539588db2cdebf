# Two commands for a newcomer: `make demo` and `make test`. Both need Python 3.11 and make, nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check bench slow clean
.DEFAULT_GOAL := test

# torch first and pinned: otherwise another package may pull a CUDA build of several gigabytes.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/twotemp demo --out demo

test: $(STAMP)
	$(BIN)/pytest -m 'not slow'

slow: $(STAMP)
	$(BIN)/pytest -m slow

check: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/pytest tests/test_imports.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks --peers "$(PEERS)"

clean:
	rm -rf $(VENV) demo build dist
