# Two commands from a fresh clone: `make quickstart` trains a model, `make test` checks everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Two processes, a file of tests to each at a time: most of a test is one core's work.
WORKERS ?= -n 2 --dist loadfile

.PHONY: install test lint types quick-test quickstart clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

test: install lint types
	$(BIN)/python -m pytest $(WORKERS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

quick-test: install
	$(BIN)/python -m pytest $(WORKERS) -m "not slow"

quickstart: install
	$(BIN)/lipschitz-rnn quickstart

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
