# `make help` lists the targets. They need Python 3.11 or newer, make and a C++ compiler.
# VENV is the environment; PYTHON creates it (default: the first one that is new enough).
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 2
WORKSTEAL := -n $(WORKERS) --dist worksteal
PYTEST := $(BIN)/python -m pytest $(WORKSTEAL)

# Tests start hundreds of processes: without cached bytecode, each compiles all sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-slow test-all fmt lint types resolve hooks recordings wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s  %s\n", $$1, $$2}' Makefile

run: $(VENV)/run  ## install ostro in .venv and answer a prompt with the starter model
	@$(BIN)/ostro run -i "What is 27 + 15?" </dev/null
	@echo
	@echo "That was the starter model, which comes with ostro. Now try:"
	@echo "  $(BIN)/ostro run                                  chat with it"
	@echo "  $(BIN)/ostro run -m ORG/NAME                      chat with a model of the hub, a folder or a .gguf"
	@echo "  $(BIN)/ostro serve                                serve it on http://127.0.0.1:1234/v1"
	@echo "  make test                                         run the tests"

test: $(VENV)/test  ## run the quick tests (12 to 25 minutes on two cores)
	$(BIN)/python tests/retry.py $(WORKSTEAL) -m "not slow and not peer and not gpu"

test-slow: $(VENV)/test  ## run the slow tests (20 to 40 minutes on two cores)
	$(PYTEST) -m "slow and not grid and not peer and not gpu"

test-all: $(VENV)/test  ## run all tests that need no other engine (hours)
	$(PYTEST) -m "not peer"

fmt: $(VENV)/dev  ## fix lint errors and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(VENV)/dev  ## check lint and format, also of scripts and the Dockerfile
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	[ ! -x $(BIN)/shellcheck ] || $(BIN)/shellcheck install.sh .ci/*  # no wheel for ARM Linux
	[ ! -x $(BIN)/hadolint ] || $(BIN)/hadolint Dockerfile  # no wheel for Windows

types: $(VENV)/dev  ## check types
	$(BIN)/mypy

resolve: $(VENV)/dev  ## resolve the dependencies under constraints.txt, for all platforms
	.ci/resolve $(BIN)/uv

hooks: $(VENV)/dev  ## install the git hooks: lint, format and types before each commit
	$(BIN)/pre-commit install

recordings: $(VENV)/dev  ## record the images of docs/recordings with tmux
	$(BIN)/python docs/recordings/record.py

wheel: $(VENV)/dev  ## build the wheel into dist
	$(PIP) wheel --quiet --no-deps -w dist .

clean:  ## remove the environment and build outputs
	rm -rf .venv dist build

$(VENV)/run: pyproject.toml constraints.txt
	@OSTRO_VENV=$(VENV) PYTHON='$(PYTHON)' sh install.sh -c constraints.txt -e .
	@touch $@

$(VENV)/test: $(VENV)/run
	$(PIP) install --quiet -e '.[test]' -c constraints.txt
	@touch $@

$(VENV)/dev: $(VENV)/test
	$(PIP) install --quiet -e '.[dev]' -c constraints.txt
	@touch $@
