# Set-up and checks for people with Python >= 3.11, pip and make. PYTHON=python3.12 make test picks another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_OUT ?= attngraft-demo
DEMO_ARGS ?=
# A part of the product, as pytest's -k: make product ONLY='TestSwin and bisa'
ONLY ?=
# Two test processes on small tensors: one thread each is fastest, and keeps two cores from fighting.
JOBS ?= 2

.PHONY: demo test slow product oldest lint docs notebooks proof clean help

help:
	@echo "make demo    install, then compare grafts on the embedded handwritten digits (report in $(DEMO_OUT)/)"
	@echo "make test    install with the development extras, then ruff, mypy and pytest"
	@echo "make slow    the long tests"
	@echo "make product every host with every graft, compiled and exported (hours; ONLY='TestSwin and bisa' takes a part)"
	@echo "make oldest  the default tests with the oldest versions that we support (in $(VENV)-oldest)"
	@echo "make proof   measure how often a comparison's intervals hold the truth (ten minutes; goes on where it stopped)"
	@echo "make docs    the documentation, links checked, in site/"
	@echo "make notebooks  run the notebooks; make docs shows what they put out"
	@echo "make clean   remove $(VENV), caches and $(DEMO_OUT)/"

$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attngraft needs Python 3.11 or newer (PYTHON=... make)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

demo: $(VENV)/installed
	$(BIN)/attngraft compare --study examples/digits.yaml --out $(DEMO_OUT) $(DEMO_ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

slow: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow

product: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m product -k "$(ONLY)" tests/contract

proof: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m proof.null_study --jobs $(JOBS)

$(VENV)-oldest/installed: pyproject.toml requirements/oldest.txt
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements/oldest.txt --editable ".[dev]"
	@touch $@

oldest: $(VENV)-oldest/installed
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest -n $(JOBS) --dist worksteal

# Not --quiet: it would swallow the warnings about links before --strict could count them. NO_MKDOCS_2_WARNING is about
# mkdocs-material's successor.
docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

notebooks: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python notebooks/run.py

clean:
	rm -rf $(VENV) $(VENV)-oldest site build .pytest_cache .mypy_cache .ruff_cache .hypothesis $(DEMO_OUT)
