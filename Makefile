# One environment in .venv; each stamp file remembers an installation, so a second call is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SECONDS ?= 1200
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help run test check lint docs bench soak install clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## */  make \1\t/' | expand -t 18

run: $(VENV)/.installed ## compare FedNAG with its rivals on the embedded digits (under a minute)
	@$(BIN)/fednag compare

test: $(VENV)/.installed-test ## run all tests
	@$(BIN)/python -m pytest

check: lint ## lint, and the fast tests of the core and of what has changed (a minute)
	@$(BIN)/python -m pytest -m "not slow and not flower and not browser" $$($(BIN)/python tests/changed.py)

lint: $(VENV)/.installed-test ## ruff and mypy --strict
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: $(VENV)/.installed-docs ## build the pages of docs/ into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed ## measure speed against peers and floors (20 minutes, an idle machine)
	@$(BIN)/python benchmarks/run.py

soak: $(VENV)/.installed ## kill and resume runs, and watch memory under load; SECONDS=3600 for an hour
	@$(BIN)/python benchmarks/soak.py --seconds $(SECONDS)

install: $(VENV)/.installed ## only make .venv; EXTRAS=flower adds what real machines need
	@$(if $(EXTRAS),$(PIP) --editable '.[$(EXTRAS)]')

clean: ## remove .venv, the peers' environments and caches (never runs/)
	rm -rf $(VENV) benchmarks/.peers .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

$(VENV)/bin/python:
	@echo "making $(VENV) (the first time this downloads torch: a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "fednag needs Python 3.11 or newer: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@$(PIP) "$$(grep -E '^torch==' constraints.txt)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@$(PIP) --editable '.[test,flower,simulation]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@$(PIP) --editable '.[docs]'
	@touch $@
