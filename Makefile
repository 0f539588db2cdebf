# Two commands for a newcomer: `make demo` and `make test`. `make docs` builds the site.
# All need Python 3.11 or newer and make, nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CODE := src tests theory recipes plugins benchmarks experiments docs

.PHONY: demo test check docs pages bench paper slow clean
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
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/pytest tests/repository/test_imports.py

# A page that cannot be built without a warning is not built. Nothing is fetched but the packages.
docs: $(STAMP)
	$(BIN)/python -c 'import furo, myst_parser' 2> /dev/null || \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "the site: docs/_build/html/index.html"

# Assemble what the playground of the docs computes with; the tests compare the result with the source.
pages: $(STAMP)
	$(BIN)/python docs/tools/tiny_kernels.py

# PARTS="claims again": only these (python -m experiments.paper --list); OPTIONS="--questions 50 -n 16": of this size.
paper: $(STAMP)
	$(BIN)/python -m experiments.paper --parts "$(PARTS)" $(OPTIONS)

bench: $(STAMP)
	$(BIN)/python -m benchmarks --peers "$(PEERS)"

clean:
	rm -rf $(VENV) demo build dist docs/_build docs/generated
