# `make demo` and `make test` set up what they need; a second run reuses it.
PYTHON ?= python3.11
PYTHON := $(shell command -v $(PYTHON) 2>/dev/null || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
WHEEL_ENV := .venv-wheel
# A process a core, one thread each: most tests are too small for two threads. Files run in the order
# of their names, since files with few tests, which xdist would run last, take the longest.
TESTS := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 \
	--dist loadfile --no-loadscope-reorder

.PHONY: demo test check unit typed wheel docs bench clean

demo: $(INSTALLED)
	$(BIN)/python examples/one_line.py
	$(BIN)/python examples/free_features.py
	$(BIN)/python examples/measure_collapse.py
	$(BIN)/python examples/embeddings.py
	$(BIN)/protosphere demo

test: check docs unit typed wheel

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(INSTALLED)
	$(TESTS) --typed without

# The rest, with every annotated shape and dtype checked at each call.
typed: $(INSTALLED)
	PROTOSPHERE_TYPED_CALLS=1 $(TESTS) --typed only tests

# The built wheel, imported from an environment that holds what it declares and nothing else.
wheel: $(INSTALLED)
	rm -rf build/wheel && $(BIN)/python -m build --wheel --outdir build/wheel
	$(BIN)/python .ci/wheel_environment.py build/wheel/*.whl $(WHEEL_ENV)
	cd build && ../$(WHEEL_ENV)/bin/protosphere doctor

# The website, from the pages, the docstrings and the committed results; broken links are errors.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "The website is site/index.html."

bench: $(INSTALLED)
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/metrics.py
	$(BIN)/python benchmarks/measure_file.py
	$(BIN)/python benchmarks/prototypes.py
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/pictures.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'protosphere needs Python 3.11 or newer')"
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv $(WHEEL_ENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
