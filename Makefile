# The verbs of this house. `make run` and `make test` need Python 3.11+, make and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: run test test-slow test-all lint types resolve wheel clean

run: .venv/run  ## answer a prompt with the starter model
	@$(BIN)/ostro run -i "What is 27 + 15?"
	@echo
	@echo "That was the starter model, which comes with ostro. Now try:"
	@echo "  $(BIN)/ostro run                                  chat with it"
	@echo "  $(BIN)/ostro run -m ORG/NAME                      chat with a model of the hub, a folder or a .gguf"
	@echo "  $(BIN)/ostro serve                                serve it on http://127.0.0.1:1234/v1"
	@echo "  make test                                         run the tests"

test: .venv/test  ## the suite, ten minutes at most on two cores
	$(PYTEST) -m "not slow and not peer and not gpu"

test-slow: .venv/test  ## what continuous integration runs besides
	$(PYTEST) -m "slow and not grid and not peer and not gpu"

test-all: .venv/test  ## everything that needs no other engine: slow tests too
	$(PYTEST) -m "not peer"

lint: .venv/dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

resolve: .venv/dev  ## resolve the dependencies under constraints.txt, without installing
	.ci/resolve $(BIN)/uv

wheel: .venv/dev
	$(PIP) wheel --quiet --no-deps -w dist .

clean:
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
