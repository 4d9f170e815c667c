# Set-up and checks; needs Python >= 3.11, pip and make. PYTHON=python3.12 make test uses another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_OUT ?= attngraft-demo
DEMO_ARGS ?=
# Part of the product, as for pytest -k: make product ONLY='TestSwin and bisa'
ONLY ?=
# Test processes. One thread each is fastest for small tensors.
JOBS ?= 2
# Further arguments of pytest, such as --durations=20
PYTEST_ARGS ?=
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test slow fuzz product oldest others audit lint docs pictures notebooks proof clean help

help:
	@echo "make demo    install, then compare grafts on the embedded handwritten digits (report in $(DEMO_OUT)/)"
	@echo "make test    install with the development extras, then ruff, mypy and pytest"
	@echo "make slow    the long tests"
	@echo "make fuzz    odd and damaged files of every format, others each time, for an hour"
	@echo "make product every host with every graft, compiled and exported, and variants of slow tests (hours; ONLY='TestSwin and bisa' selects a part)"
	@echo "make oldest  hosts alone, export and a training run with the oldest supported versions (in $(VENV)-oldest)"
	@echo "make others  the contract on Python 3.12 and 3.13 (in $(VENV)-3.12 and $(VENV)-3.13)"
	@echo "make audit   known vulnerabilities of the installed packages, where https://pypi.org can be reached"
	@echo "make proof   measure the coverage of the intervals in simulated studies (ten minutes; rerun to resume)"
	@echo "make docs    the documentation, links checked, in site/"
	@echo "make pictures  run the demo and make the pictures of its report in docs/images anew (needs Chromium)"
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
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

slow: $(VENV)/installed-dev
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS) -m "slow and not product"

# An hour for all formats, divided among the processes.
fuzz: $(VENV)/installed-dev
	ATTNGRAFT_FUZZ_SECONDS=$$((3600 * $(JOBS))) $(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS) \
		-m slow tests/fuzzing

product: $(VENV)/installed-dev
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS) -m product -k "$(ONLY)"

proof: $(VENV)/installed-dev
	$(ONE_THREAD) $(BIN)/python -m proof.null_study --jobs $(JOBS)
	$(ONE_THREAD) $(BIN)/python -m proof.verdict_grid

$(VENV)-oldest/installed: pyproject.toml requirements/oldest.txt
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements/oldest.txt --editable ".[data,export,hf,test]"
	@touch $@

oldest: $(VENV)-oldest/installed
	$(ONE_THREAD) $(VENV)-oldest/bin/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS) -m "oldest and not slow and not product" \
		tests/contract tests/export tests/training tests/test_package.py

$(VENV)-%/installed: pyproject.toml
	python$* -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[data,export,hf,text,test]"
	@touch $@

others: $(VENV)-3.12/installed $(VENV)-3.13/installed
	for version in 3.12 3.13; do \
		$(ONE_THREAD) $(VENV)-$$version/bin/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS) \
			tests/contract tests/test_package.py || exit 1; \
	done

audit: $(VENV)/installed-dev
	@if $(BIN)/python -c 'from urllib.request import urlopen; urlopen("https://pypi.org/pypi/pip/23.2/json", timeout=10)' 2>/dev/null; \
	then $(BIN)/python -m pip_audit --progress-spinner off --skip-editable; \
	else echo "skipped: the vulnerabilities listed at https://pypi.org cannot be read"; fi

# Without --quiet, which would hide broken links from --strict.
docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

pictures: demo
	$(BIN)/python docs/generate/pictures.py $(DEMO_OUT)/report.html docs/images/report.png --height 1150

notebooks: $(VENV)/installed-dev
	$(ONE_THREAD) $(BIN)/python notebooks/run.py

clean:
	rm -rf $(VENV) $(VENV)-oldest site build .pytest_cache .mypy_cache .ruff_cache .hypothesis $(DEMO_OUT)
