# Each target takes a fresh clone to done by itself: it needs git, make and Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
SITE := $(VENV)/.site
ARGS ?=
# uv installs in a quarter of pip's time, where there is one.
INSTALL ?= $(if $(shell command -v uv),uv pip install --python $(VENV)/bin/python,$(VENV)/bin/python -m pip install) --quiet

.PHONY: run quick test test-all chaos lint site clean

run: $(READY)
	$(VENV)/bin/python -m cluster.launch $(ARGS)

# Files are dealt to so many processes, each of which takes about 1 GiB.
WORKERS ?= 2
PYTEST := $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What a contributor runs first: the tests of fl/ and kernels/ without the methods, a minute on
# two cores. Add the file of the method that you change, such as tests/fl/methods/test_fedmho.py.
quick: $(TOOLS)
	$(PYTEST) -m "not slow and not gpu" --ignore=tests/fl/methods tests/fl tests/kernels $(ARGS)

test: $(TOOLS)
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(TOOLS)
	$(PYTEST) $(ARGS)

# So many faults strike runs, each drawn by its number: a failure names it.
FAULTS ?= 20
SEED ?= 0

chaos: $(TOOLS)
	$(VENV)/bin/python -m pytest tests/chaos --faults=$(FAULTS) --chaos-seed=$(SEED) $(ARGS)

lint: $(TOOLS)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# README.md, docs/ and the docstrings as site/index.html; a broken link fails it.
site: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Onefold needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	@touch $@

# Who only runs it needs no ruff, mypy or pytest.
$(TOOLS): $(READY)
	$(INSTALL) -e '.[dev]'
	@touch $@

$(SITE): $(READY)
	$(INSTALL) -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV)
