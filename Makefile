# make demo   set up, install a stack, run ResNet-50 on 1 and 2 ranks, print how it scales
# make test   set up, then linters and all tests
# make lint   ruff and mypy
# make docs   the documentation, into site/: open site/index.html
# make bench  the benchmarks: ratios within one run
# make soak   30 minutes of random messages over mpi://; SOAK_PYTHON is a Python of the stack mpi4dask
.PHONY: demo test lint docs bench soak clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

$(READY): pyproject.toml tools/bootstrap
	tools/bootstrap $(VENV)
	touch $@

demo: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" tools/demo

test: lint
	$(BIN)/pytest -n 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(READY)
	$(BIN)/python -m benchmarks

soak:
	"$(dir $(SOAK_PYTHON))mpiexec" -n 4 "$(SOAK_PYTHON)" tests/mpi4dask/programs/soak.py 1800

clean:
	rm -rf $(VENV) site
