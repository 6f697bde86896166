# Two commands from a fresh clone: `make quickstart` trains a model, `make test` checks it all in minutes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Two processes with one thread each (tests/conftest.py); whichever has nothing left takes tests from the other.
WORKERS ?= -n 2 --dist worksteal

.PHONY: install test test-full test-peers torture lint types quick-test quickstart docs dist clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

test: install lint types
	$(BIN)/python -m pytest $(WORKERS)

# With the tests marked full, and the random campaigns of tests/stability at their whole length: at most an hour.
test-full: export LIPSCHITZ_RNN_SOUNDNESS ?= 2000
test-full: export LIPSCHITZ_RNN_CAMPAIGN ?= 10000
test-full: export LIPSCHITZ_RNN_DRAWS ?= 1000
test-full: export LIPSCHITZ_RNN_USEFUL ?= 100
test-full: export LIPSCHITZ_RNN_RADII ?= 200
test-full: export LIPSCHITZ_RNN_ATTACKED ?= 10000
test-full: install lint types
	$(BIN)/python -m pytest $(WORKERS) -m ""

# The estimators against aeon's and sktime's own checks. aeon needs an older NumPy, so it has an environment of its own.
PEERS ?= .venv-peers

$(PEERS)/.installed: pyproject.toml constraints-peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-peers.txt -e ".[peers]"
	touch $@

test-peers: $(PEERS)/.installed
	$(PEERS)/bin/python -m pytest tests/peers -m "" -W ignore

# Runs killed a thousand times, on full disks, with damaged files and more: a table of what happened.
torture: install
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/torture.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: install
	$(BIN)/mypy

quick-test: install
	$(BIN)/python -m pytest $(WORKERS) -m "not slow and not full"

# The site in build/site. Its tools are in the same environment, but not in `make install`, which CI waits for.
$(VENV)/.docs-installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

docs: $(VENV)/.docs-installed
	$(BIN)/python docs/_ext/licences.py --check
	$(BIN)/sphinx-build -W --keep-going -q -b html -d build/doctrees docs build/site

# Wheel and sdist in dist, as a release publishes them.
dist: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[release]"
	$(BIN)/python -m build --no-isolation --outdir dist .

quickstart: install
	$(BIN)/lipschitz-rnn quickstart

clean:
	rm -rf $(VENV) $(PEERS) build dist .pytest_cache .mypy_cache .ruff_cache
