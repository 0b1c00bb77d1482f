# Needs make and Python 3.11 or newer, nothing else; everything is installed into .venv.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= -c constraints.txt
BIN := $(VENV)/bin

.PHONY: demo test test-fast test-oldest test-newest pytest lint types format docs architecture
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/linglue demo -o out

# What every change must pass.
test: lint types pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# One thread per process: the tests run in two, and torch's own threads would fight for the same cores.
pytest test-fast: export OMP_NUM_THREADS = 1
pytest: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 --durations 10 --cov --cov-report term:skip-covered

# Without the tests marked slow, for the minutes between two edits.
test-fast: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 -m "not slow"

# The oldest dependencies that pyproject.toml allows, and the newest there are, each in an environment of its own.
test-oldest:
	$(MAKE) pytest VENV=.venv-oldest CONSTRAINTS="-c constraints-oldest.txt"

test-newest:
	$(MAKE) pytest VENV=.venv-newest CONSTRAINTS="--upgrade"

# The site in site/, with an API page per module; a warning is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The tree and the paths in docs/architecture.md, written anew from the code.
architecture: $(VENV)/.installed-dev
	$(BIN)/python docs/write_architecture.py

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The stamps make a second run start at once; they age when the dependencies change.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "LinGlue needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt constraints-oldest.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt constraints-oldest.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e ".[dev]"
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt constraints-oldest.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e ".[docs]"
	touch $@ $(VENV)/.installed
