.PHONY: help demo test quick test-all torture lint lock schema parameters docs bench rehearse keras-table gpu gpu-bundle gpu-stacks spack-tests soak clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BEGAN := $(shell date +%s)
.DEFAULT_GOAL := help

$(READY): pyproject.toml requirements.lock tools/bootstrap
	tools/bootstrap $(VENV)
	touch $@

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(READY)  ## set up, install a stack, run ResNet-50 on 1 and 2 ranks, print how it scales: 8 minutes at most
	DEMO_BEGAN=$(BEGAN) PATH="$(CURDIR)/$(BIN):$$PATH" tools/demo

test: lint  ## set up, then linters and all tests but the deep ones: about 15 minutes on 2 cores
	$(BIN)/python -m tools.run_tests

quick: lint  ## linters and the pure tests: 4 minutes on 2 cores
	$(BIN)/python -m tools.run_tests --quick

test-all: lint  ## the same as test, with sweeps and long waits: for the night
	$(BIN)/python -m tools.run_tests --deep

torture: $(READY)  ## T=tests/x.py::test_y 100 times, then 100 times beside four busy loops (N: how often)
	tools/torture $(BIN)/pytest "$(or $(T),$(error T=tests/x.py::test_y is missing))" "$(or $(N),100)"

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lock: $(READY)  ## requirements.lock: the newest versions of what hidl and its tools need
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --no-annotate --no-header \
		--all-extras --output-file requirements.lock pyproject.toml

schema: $(READY)  ## the JSON Schemas that editors read for site, stack and workload files
	$(BIN)/hidl config schema site_configs/schema
	$(BIN)/hidl config schema recipes/schema

parameters: $(READY)  ## hidl_workloads/parameters.py, from recipes/workloads
	$(BIN)/python tools/parameters.py

docs: $(READY)  ## the documentation, into site/: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(READY)  ## the benchmarks: ratios within one run
	$(BIN)/python -m benchmarks

rehearse: $(READY)  ## hidl on a twin of every site that runs; writes docs/reference/rehearsed-sites.md
	$(BIN)/hidl rehearse --all --report docs/reference/rehearsed-sites.md

keras-table: $(READY)  ## all of Keras in two partitions beside one process: hours; writes docs/reference/hyparflow-keras.md
	$(BIN)/hidl install tensorflow
	$(BIN)/hidl stack exec tensorflow -- sh -c '$(BIN)/python -m tests.hyparflow.tables.page "$$VIRTUAL_ENV"'

gpu-stacks: $(READY)  ## install and verify the stacks for NVIDIA's GPUs, without one: 27 GiB, 15 more in uv's cache; for the night
	$(BIN)/hidl install pytorch tensorflow mpi4dask horovod-pytorch horovod-pytorch-mpi $(if $(HIDL_SOURCES),omb) \
		--site perlmutter --verify here --prefix "$(or $(ROOT),$(CURDIR)/.gpu-stacks)"
	! grep "unlike the table of wheels" "$(or $(ROOT),$(CURDIR)/.gpu-stacks)"/perlmutter/*/current/verification.json

gpu:  ## what hidl does on this machine's GPUs: OUTPUT=gpu.json and gpu.md; PYTHON: one with PyTorch for them
	tools/gpu

gpu-bundle: $(READY)  ## all that `make gpu` needs on a machine without a network: FILE=hidl-gpu.tar, 6 GiB
	tools/gpu_bundle "$(or $(FILE),hidl-gpu.tar)"

spack-tests: $(READY)  ## tests with a real Spack: half an hour; SPACK, SPACK_PACKAGES: clones of both, else they are fetched
	tools/spack_tests "$(BIN)/python" "$(SPACK)" "$(SPACK_PACKAGES)"

soak:  ## 30 minutes of random messages over mpi://; SOAK_PYTHON is a Python of the stack mpi4dask
	"$(dir $(SOAK_PYTHON))mpiexec" -n 4 "$(SOAK_PYTHON)" tests/mpi4dask/programs/soak.py 1800

clean:  ## remove what the above made
	rm -rf $(VENV) site .tests .gpu-stacks
