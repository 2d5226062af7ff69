# Each target makes .venv with pinned packages if it is not there yet, so one command is enough on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs

.PHONY: help demo test test-long lint docs bench truth adaptive exact flow cnn deep clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "adakern needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(DOCS_STAMP): requirements-docs.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch $@

demo: $(STAMP) ## the predictors side by side on handwritten digits: a table and a picture
	$(BIN)/adakern demo

test-long: $(STAMP) ## every test, those too that make test leaves out for their compilations
	ADAKERN_LONG=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

lint: $(STAMP) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Most of the tests' time is compilation of programs that run once: with little optimisation it is a quarter less, and what runs long does not suffer.
# What one of the two workers, or a program that a test starts, has compiled, the others find in a folder of this run.
COMPILED := .pytest_cache/compiled
test: $(STAMP) lint ## lint, then every test but the long ones
	@rm -rf $(COMPILED)
	JAX_COMPILATION_CACHE_DIR=$(CURDIR)/$(COMPILED) JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.2 XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true" OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q --durations=10

docs: $(DOCS_STAMP) ## the documentation as HTML, in docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

bench: $(STAMP) ## the timings, with their tables in benchmarks/
	$(BIN)/adakern bench lazy --markdown benchmarks/lazy.md
	$(BIN)/adakern bench networks --markdown benchmarks/networks.md

truth: $(STAMP) ## networks of finite width against what is known without them; wants a GPU
	$(BIN)/adakern bench truth --markdown benchmarks/truth.md --numbers benchmarks/truth.json --picture benchmarks/truth.png

adaptive: $(STAMP) ## the adaptive kernel against wide networks, closed forms and limits, and its speed; wants a GPU
	$(BIN)/adakern bench adaptive --markdown benchmarks/adaptive.md --numbers benchmarks/adaptive.json --picture benchmarks/adaptive.png

exact: $(STAMP) ## closed forms, dual and perturbation theory against what is sampled
	$(BIN)/adakern bench exact --markdown benchmarks/exact.md --numbers benchmarks/exact.json --picture benchmarks/exact.png

flow: $(STAMP) ## gradient flow with weight decay against networks, closed forms and certificates; wants a GPU
	$(BIN)/adakern bench flow --markdown benchmarks/flow.md --numbers benchmarks/flow.json --picture benchmarks/flow.png

cnn: $(STAMP) ## convolutional networks against networks of finite width, published losses, memory; wants a GPU
	$(BIN)/adakern bench cnn --markdown benchmarks/cnn.md --numbers benchmarks/cnn.json --picture benchmarks/cnn.png

deep: $(STAMP) ## training over time of deep networks against networks of finite width, where it ends, its noise and cost; wants a GPU
	$(BIN)/adakern bench deep-dynamics --markdown benchmarks/deep-dynamics.md --numbers benchmarks/deep-dynamics.json --picture benchmarks/deep-dynamics.png

clean: ## remove what the other targets made
	rm -rf $(VENV) docs/_build build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
