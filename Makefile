# `make help` lists the targets. They need Python 3.11 or newer, make and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: help run test test-slow test-all fmt lint types resolve hooks wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s  %s\n", $$1, $$2}' Makefile

run: .venv/run  ## install ostro in .venv and answer a prompt with the starter model
	@$(BIN)/ostro run -i "What is 27 + 15?"
	@echo
	@echo "That was the starter model, which comes with ostro. Now try:"
	@echo "  $(BIN)/ostro run                                  chat with it"
	@echo "  $(BIN)/ostro run -m ORG/NAME                      chat with a model of the hub, a folder or a .gguf"
	@echo "  $(BIN)/ostro serve                                serve it on http://127.0.0.1:1234/v1"
	@echo "  make test                                         run the tests"

test: .venv/test  ## run the quick tests (ten minutes on two cores)
	$(PYTEST) -m "not slow and not peer and not gpu"

test-slow: .venv/test  ## run the slow tests of continuous integration
	$(PYTEST) -m "slow and not grid and not peer and not gpu"

test-all: .venv/test  ## run all tests that need no other engine (hours)
	$(PYTEST) -m "not peer"

fmt: .venv/dev  ## fix lint errors and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: .venv/dev  ## check lint and format
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: .venv/dev  ## check types
	$(BIN)/mypy

resolve: .venv/dev  ## resolve the dependencies under constraints.txt, without installing
	.ci/resolve $(BIN)/uv

hooks: .venv/dev  ## install the git hooks: lint, format and types before each commit
	$(BIN)/pre-commit install

wheel: .venv/dev  ## build the wheel into dist
	$(PIP) wheel --quiet --no-deps -w dist .

clean:  ## remove the environment and build outputs
	rm -rf .venv dist build

.venv/run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("ostro needs Python 3.11 or newer; try make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet torch -c constraints.txt
	$(PIP) install --quiet -e . -c constraints.txt
	@touch $@

.venv/test: .venv/run
	$(PIP) install --quiet -e '.[test]' -c constraints.txt
	@touch $@

.venv/dev: .venv/test
	$(PIP) install --quiet -e '.[dev]' -c constraints.txt
	@touch $@
