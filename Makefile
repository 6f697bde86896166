# Two commands from a fresh clone: `make quickstart` trains a model, `make test` checks everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: install test lint types quick-test quickstart clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

test: install lint types
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

quick-test: install
	$(BIN)/python -m pytest -m "not slow"

quickstart: install
	$(BIN)/lipschitz-rnn quickstart

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
