# Everything is a target: `make help` lists them. Tools are installed into .venv; nothing outside this folder is changed
# but the caches of uv, cargo and diptych.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PORT ?= 8000
MODEL ?=
ARGS ?=

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
# A uv that is there already is used, with its own settings; otherwise it comes from PyPI into the environment.
UV = $(or $(shell command -v uv),$(BIN)/uv)
# clippy, cargo test and maturin share one folder, so that a dependency is compiled once per profile.
export CARGO_TARGET_DIR := $(CURDIR)/target
# The environment in use is this one, whatever the caller had activated.
export VIRTUAL_ENV := $(VENV)
unexport PYTHONPATH PYTHONHOME CONDA_PREFIX

RUST_SOURCES := Cargo.toml Cargo.lock rust/pyproject.toml $(shell find rust kernels/cpu -name '*.rs' -path '*/src/*' -o -name Cargo.toml -path 'rust/*' -o -name Cargo.toml -path 'kernels/cpu/*')
CLIENT_TESTS := $(addprefix tests/service/test_,openai_client.py tool_calls.py forced_calls.py node_client.py client_texts.py lm_eval.py)
STAGES := fmt clippy cargo-tests ruff mypy stubtest pytest

.PHONY: help setup serve test parity quality bench bench-instructions bench-kernels bench-peers bench-simulate bench-target text soak clients gpu-check clean $(STAGES)

help:  ## List the targets
	@echo "Usage: make TARGET [NAME=value ...]"
	@sed -nE 's/^([a-z][a-z -]*):[^#]*## (.*)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

# --- Environment ------------------------------------------------------------------------------------------------------

setup: $(STAMPS)/ready  ## Make .venv and install both distributions into it

$(STAMPS)/venv:
	@command -v $(PYTHON) >/dev/null || { echo "setup: no '$(PYTHON)' on PATH: install Python 3.11 or newer, or pass PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: $$($(PYTHON) --version) is too old: Diptych needs Python 3.11 or newer (PYTHON=/path/to/python chooses another)" >&2; exit 1; }
	@command -v cargo >/dev/null && command -v rustc >/dev/null || { echo "setup: no Rust toolchain on PATH (cargo and rustc): install one from https://rustup.rs" >&2; exit 1; }
	@command -v $${CC:-cc} >/dev/null || { echo "setup: no C compiler '$${CC:-cc}' on PATH: install one (Debian and Ubuntu: apt install build-essential), or set CC" >&2; exit 1; }
	@free=$$(df -Pk . | awk 'NR == 2 { print int($$4 / 1048576) }'); if [ "$$free" -lt 15 ]; then echo "setup: $$free GiB free in $(CURDIR), about 15 are needed (torch, Rust build, sample model): free some space" >&2; exit 1; fi
	@[ -x $(BIN)/python ] || { echo "setup: creating $(VENV)"; $(PYTHON) -m venv $(VENV) || { echo "setup: '$(PYTHON) -m venv' failed: install the venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }; }
	@command -v uv >/dev/null || [ -x $(BIN)/uv ] || { echo "setup: installing uv into $(VENV)"; $(BIN)/python -m pip install --quiet uv; }
	@mkdir -p $(STAMPS) && touch $@

# The stamp bears the time of the start, so that a source changed meanwhile counts as newer.
# maturin first: it builds diptych-core in the shared target folder, where an isolated build would start from nothing.
$(STAMPS)/native: $(STAMPS)/venv $(RUST_SOURCES)
	@[ -x $(BIN)/maturin ] || $(UV) pip install --quiet --python $(BIN)/python "$$(sed -nE 's/^requires = \["(maturin[^"]*)"\]/\1/p' rust/pyproject.toml)"
	@echo "setup: building diptych-core (release)"
	@touch $@.started && cd rust && $(BIN)/maturin develop --release --uv && mv $@.started $@

$(STAMPS)/ready: $(STAMPS)/native pyproject.toml
	@echo "setup: installing diptych with its dependencies"
	@$(UV) pip install --python $(BIN)/python --editable '.[test,otel]'
	@touch $@

# --- Run --------------------------------------------------------------------------------------------------------------

serve: setup  ## Serve MODEL= (default: the sample model, fetched once) on PORT= (8000) with ARGS=
	@model='$(MODEL)'; if [ -z "$$model" ]; then model=smollm2-135m; $(BIN)/diptych pull "$$model" >/dev/null; fi; \
	 exec $(BIN)/diptych serve --model "$$model" --port $(PORT) $(ARGS)

# --- Check ------------------------------------------------------------------------------------------------------------

test:  ## Run every check, timed, stopping at the first failure
	@table=""; started=$$SECONDS; \
	 report() { printf '\n%-14s %8s\n' stage seconds; printf '%b' "$$table"; printf '%-14s %8d\n' total $$((SECONDS - started)); }; \
	 for stage in setup $(STAGES); do \
	     printf '\n=== %s ===\n' "$$stage"; begun=$$SECONDS; \
	     if ! $(MAKE) --no-print-directory "$$stage"; then \
	         report; echo "make test: FAILED in stage '$$stage' (repeat it alone: make $$stage)" >&2; exit 1; fi; \
	     table+=$$(printf '%-14s %8d' "$$stage" $$((SECONDS - begun)))'\n'; \
	 done; report; echo "make test: all stages passed"

fmt:
	cargo fmt --all --check

clippy:
	cargo clippy --workspace --all-targets --locked -- -D warnings

# The second run looks for bugs planted on purpose; the binding crate is tested through Python.
cargo-tests:
	@if cargo nextest --version >/dev/null 2>&1; then runner="nextest run"; else runner=test; fi; set -x; \
	 cargo $$runner --workspace --exclude diptych-python --locked; \
	 cargo $$runner -p diptych-core --features planted-faults --locked --test proof planted_faults

ruff: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

mypy: setup
	$(BIN)/mypy

stubtest: setup
	cd rust/python && $(BIN)/python -P -m mypy.stubtest diptych_core --mypy-config-file $(CURDIR)/pyproject.toml

pytest: setup
	$(BIN)/pytest --durations=10

parity: setup  ## Compare logits bit by bit, and greedy ids with transformers over long prompts (minutes)
	$(BIN)/python bench/exactness.py
	$(BIN)/python bench/parity.py $(ARGS)

bench: setup  ## Measure the core's step and the service over loopback
	cargo bench -p diptych-core --locked
	$(BIN)/python bench/step.py --skip-criterion
	$(BIN)/python bench/serve.py --scripted $(ARGS)

quality: setup  ## Measure what each format of weights and KV cache costs in perplexity (a quarter of an hour)
	$(BIN)/python bench/quality.py $(ARGS)

bench-kernels: setup  ## Measure what each fusion of the native kernels gains (ARGS=--kv-layout: layouts of the KV cache)
	$(BIN)/python bench/kernels.py $(ARGS)

bench-simulate: setup  ## Run the examples that the scheduler must keep in the simulator, beside the peers' policies (minutes)
	$(BIN)/diptych simulate --suite --page bench/results/simulate.md $(ARGS)

bench-instructions: setup  ## Count the instructions of the core's two calls and its bytes, by valgrind (a minute)
	$(BIN)/python bench/instructions.py --page bench/results/instructions.md $(ARGS)

bench-peers: setup  ## Measure Diptych against other engines on this CPU (installs them: GBs; half an hour)
	@$(BIN)/diptych pull smollm2-135m >/dev/null
	cd bench && $(BIN)/python -m peers $(ARGS)

bench-target: setup  ## Measure a target for the gap between tokens: four streams and a long prompt (two minutes)
	$(BIN)/python bench/target_itl.py $(ARGS)

text: setup  ## Run a million random sequences through released tokenizers, and time their encoding (fetches 110 MB; minutes)
	$(BIN)/python bench/text.py $(ARGS)
	$(BIN)/python bench/encode.py

soak: setup  ## Watch memory over a thousand requests, then kill workers twenty times under streams
	$(BIN)/python bench/soak.py $(ARGS)
	$(BIN)/python bench/kills.py
	$(BIN)/python bench/kills.py --streams 16 --model smollm2-135m

# lm-eval has an environment of its own, and finds torch and transformers in ours: they are large.
clients: setup  ## Run outside clients, a browser and lm-eval against a running service; installs what they need (850 MB)
	@echo "clients: the newest openai clients for Python and, where there is Node, for it, and a browser, against a scripted service; lm-eval against the sample model"
	$(UV) pip install --quiet --python $(BIN)/python --upgrade openai
	@$(BIN)/python -c 'import openai; print("clients: openai", openai.__version__, "for Python")'
	@if command -v npm >/dev/null; then mkdir -p $(VENV)/node \
	     && npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/node openai puppeteer-core @sparticuz/chromium \
	     && npm ls --depth=0 --prefix $(VENV)/node; \
	 else echo "clients: Node's client and the browser SKIPPED: no npm on PATH"; fi
	@[ -x $(VENV)/lm-eval/bin/python ] || $(UV) venv --quiet --python $(BIN)/python $(VENV)/lm-eval
	@$(UV) pip install --quiet --python $(VENV)/lm-eval/bin/python 'lm-eval[api]'
	@$(UV) pip install --quiet --no-deps --python $(VENV)/lm-eval/bin/python accelerate
	@path='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	 $(BIN)/python -c "$$path" > "$$($(VENV)/lm-eval/bin/python -c "$$path")/torch-and-transformers.pth"
	@$(VENV)/lm-eval/bin/python -c 'from importlib.metadata import version; print("clients: lm-eval", version("lm-eval"))'
	DIPTYCH_NODE_MODULES=$(VENV)/node DIPTYCH_LM_EVAL=$(VENV)/lm-eval/bin/python $(BIN)/pytest -v $(CLIENT_TESTS)

gpu-check: setup  ## Run what needs a CUDA device; skips aloud without one
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then $(BIN)/pytest -v -m cuda; \
	 else echo "gpu-check: SKIPPED: torch sees no CUDA device"; fi

clean:  ## Remove the environment and every build output
	rm -rf .venv target dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
