# `make help` lists the targets. They need Python 3.11 or newer, make, and g++ for the CPU kernels.
# VENV is the environment; PYTHON creates it (default: the first one that is new enough).
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 2
WORKSTEAL := -n $(WORKERS) --dist worksteal
SHARD ?= 1/1
# `make test` adds the tests of what has changed since this commit: the last one of main, if it exists.
CHANGED ?= $(shell git rev-parse --verify --quiet main 2>/dev/null)

# Tests start hundreds of processes: without cached bytecode, each compiles all sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-process test-all fmt lint types resolve hooks recordings wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s  %s\n", $$1, $$2}' Makefile

run: $(VENV)/run  ## install ostro in .venv and answer a prompt with the starter model
	@$(BIN)/python -m ostro.core.native
	@$(BIN)/ostro run -i "What is 27 + 15?" </dev/null
	@echo
	@echo "That was the starter model, which comes with ostro. Now try:"
	@echo "  $(BIN)/ostro run                                  chat with it"
	@echo "  $(BIN)/ostro run -m ORG/NAME                      chat with a model of the hub, a folder or a .gguf"
	@echo "  $(BIN)/ostro serve                                serve it on http://127.0.0.1:1234/v1"
	@echo "  make test                                         run the tests"

test: $(VENV)/test  ## run the quick tests, and all tests of plugins that differ from CHANGED
	$(BIN)/python tests/retry.py $(WORKSTEAL) $(if $(CHANGED),--changed $(CHANGED)) \
	  -m "(not slow or changed) and not process and not peer and not gpu"

test-process: $(VENV)/test  ## run the tests of real servers, terminals and processes, one at a time
	$(BIN)/python tests/retry.py -m "process and not slow and not peer"

test-all: $(VENV)/test  ## run all tests, or those of SHARD=K/N; continues after an interruption
	$(BIN)/python tests/shards.py $(SHARD) --workers $(WORKERS)
	[ "$(SHARD:1/%=1)" != 1 ] || .ci/second-python 1/1

fmt: $(VENV)/dev  ## fix lint errors and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(VENV)/dev  ## check lint and format, also of scripts and the Dockerfile
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	[ ! -x $(BIN)/shellcheck ] || $(BIN)/shellcheck install.sh $(filter-out %.py,$(wildcard .ci/*))  # no wheel for ARM Linux
	[ ! -x $(BIN)/hadolint ] || $(BIN)/hadolint Dockerfile  # no wheel for Windows

types: $(VENV)/dev  ## check types
	$(BIN)/mypy

resolve: $(VENV)/dev  ## resolve the dependencies under constraints.txt, for all platforms
	.ci/resolve $(BIN)/uv

hooks: $(VENV)/dev  ## install the git hooks: lint, format and types before each commit
	$(BIN)/pre-commit install

recordings: $(VENV)/dev  ## record the images of docs/recordings with tmux
	$(BIN)/python docs/recordings/record.py

wheel: $(VENV)/dev  ## build the wheel, with kernels for this machine type's CPUs, into dist
	rm -rf build/wheel
	$(PIP) wheel --quiet --no-deps -w build/wheel .
	@mkdir -p dist
	@case $$(echo build/wheel/*.whl) in \
	  *-any.whl) cp build/wheel/*.whl dist; echo "dist: a wheel without kernels, which need g++" ;; \
	  *) PATH="$(abspath $(BIN)):$$PATH" auditwheel repair -w dist build/wheel/*.whl ;; \
	esac

clean:  ## remove the environment and build outputs
	rm -rf .venv dist build

$(VENV)/run: pyproject.toml constraints.txt
	@echo "installing ostro and its dependencies in $(VENV)"
	@OSTRO_VENV=$(VENV) PYTHON='$(PYTHON)' sh install.sh -c constraints.txt -e .
	@touch $@

$(VENV)/test: $(VENV)/run
	$(PIP) install --quiet -e '.[test]' -c constraints.txt
	@touch $@

$(VENV)/dev: $(VENV)/test
	$(PIP) install --quiet -e '.[dev]' -c constraints.txt
	@touch $@
