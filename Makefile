# make demo   set up, install a stack, run ResNet-50 on 1 and 2 ranks, print how it scales
# make test   set up, then linters and all tests
# make lint   ruff and mypy
# make bench  the benchmarks: ratios within one run
.PHONY: demo test lint bench clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

$(READY): pyproject.toml tools/bootstrap
	tools/bootstrap $(VENV)
	touch $@

demo: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" tools/demo

test: lint
	$(BIN)/pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV)
