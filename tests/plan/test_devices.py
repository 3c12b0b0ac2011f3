"""What runs compute on: by workload, nodes, stack and --device; each refusal with its reason and the next step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.errors import ExitCode, HidlError
from hidl_cli.inputs.overlay import list_all
from hidl_cli.launch.launchers import launcher
from hidl_cli.plan.checks import load_workload
from hidl_cli.plan.devices import DEVICE
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.planning import planned_again
from hidl_cli.plan.prepare import prepare
from hidl_cli.site.load import load_site
from hidl_cli.stack import target
from hidl_cli.stack.checks import load_stack

OWN = {"workload": "", "command": ("python", "train.py"), "directory": "/home/user"}


@pytest.fixture(autouse=True)
def stacks(config: Path) -> None:
    """A user's stack with CuPy."""
    file = config / "stacks" / "with-cupy.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("{name: with-cupy, title: CuPy, extends: mpi, mpi: mpich, requirements: ['cupy-cuda12x>=13']}")


def plan(workload: str = "resnet50", **keys: Any) -> Plan:
    values = {"workload": workload, "site": "pitzer", "hypothetical": True, "prefix": "/apps"} | keys
    return prepare(RunRequest(**values))


def refused(*args: Any, **keys: Any) -> HidlError:
    with pytest.raises(HidlError) as error:
        plan(*args, **keys)
    return error.value


@pytest.mark.parametrize("name", [entry.name for entry in list_all("workload") if entry.origin == "shipped"])
def test_every_shipped_workload_says_what_it_computes_on(name: str) -> None:
    assert load_workload(name).devices


def test_what_computes_on_processors_only_is_refused_on_nodes_with_gpus() -> None:
    error = refused(parameters=["framework=tensorflow", "backend=horovod"])
    assert error.exit_code is ExitCode.USAGE
    assert "resnet50 with framework=tensorflow backend=horovod computes on CPUs only" in error.message
    assert "partition gpu-dual of site pitzer have GPUs" in error.message
    assert error.hint == "use --device cpu (partition standard-40)"


def test_tensorflow_trains_on_gpus_where_its_wheels_do() -> None:
    found = plan(parameters=["framework=tensorflow"])
    assert (found.device, found.stack) == ("gpu", "tensorflow")
    error = refused(site="vista", account="m0", parameters=["framework=tensorflow"])
    assert error.exit_code is ExitCode.MISSING_PRECONDITION
    both = refused(site="perlmutter", account="m0", matrix=["framework=torch,tensorflow"])
    assert "horovod-pytorch" not in str(both.hint)


@pytest.mark.parametrize("workload", ["resnet50", "gpt"])
@pytest.mark.parametrize("backend", ["mpi4py", "gloo", "nccl"])
def test_a_training_with_pytorch_is_told_its_gpu(workload: str, backend: str) -> None:
    made = plan(workload, parameters=[f"backend={backend}"])
    assert (made.device, made.allocation.gpus_per_node) == ("gpu", 2)
    assert (made.environment["HIDL_DEVICE"], made.environment["HIDL_GPUS_PER_RANK"]) == ("gpu", "1")


def test_device_cpu_takes_the_partition_without_gpus_and_says_so() -> None:
    made = plan(device="cpu")
    assert (made.device, made.partition, made.allocation.gpus_per_node) == ("cpu", "standard-40", None)
    assert "--device cpu selects partition standard-40 instead of gpu-dual" in made.warnings
    assert not [setting for setting in made.tuning if "CUDA" in setting.name]
    assert "HIDL_GPUS_PER_RANK" not in made.environment


def test_a_partition_that_is_named_stays() -> None:
    made = plan(device="cpu", partition="gpu-quad")
    assert (made.partition, made.allocation.gpus_per_node) == ("gpu-quad", None)


def test_without_such_a_partition_the_nodes_stay_and_no_gpus_are_requested() -> None:
    made = plan(site="leonardo", device="cpu", account="x")
    assert (made.partition, made.allocation.gpus_per_node) == ("boost_usr_prod", None)
    assert not [line for line in made.header if "gpu" in line]


def test_device_gpu_takes_the_partition_with_gpus() -> None:
    made = plan("mpi-sanity", site="anvil", device="gpu")
    assert (made.device, made.partition, made.allocation.gpus_per_node) == ("gpu", "gpu", 4)
    assert plan("mpi-sanity", site="anvil").device == "cpu"


def test_where_the_number_of_gpus_is_unknown_none_is_requested() -> None:
    made = plan("mpi-sanity", site="mri", account="x")
    assert (made.device, made.allocation.gpus_per_node) == ("cpu", None)
    assert plan("mpi-sanity", site="mri", account="x", device="gpu").device == "gpu"


def test_device_gpu_without_gpus_is_refused() -> None:
    error = refused("mpi-sanity", site="frontera", device="gpu")
    assert (error.exit_code, error.message) == (
        ExitCode.USAGE,
        "--device gpu: the nodes of partition normal of site frontera have no GPUs",
    )


def test_a_device_that_the_workload_lacks_is_refused() -> None:
    error = refused(device="gpu", parameters=["framework=tensorflow", "backend=horovod"])
    assert error.message == "resnet50 with framework=tensorflow backend=horovod computes on CPUs only"
    error = refused(device="cpu", parameters=["backend=nccl"])
    assert error.message == "resnet50 with framework=torch backend=nccl computes on GPUs only"
    error = refused("omb-latency", device="cpu", parameters=["buffer=cupy"])
    assert (error.message, error.hint) == ("omb-latency with buffer=cupy computes on GPUs only", "use --device gpu")


def test_what_measures_the_nodes_runs_on_their_processors_and_requests_no_gpus() -> None:
    made = plan("osu-latency", nodes=2)
    assert (made.device, made.partition, made.allocation.gpus_per_node) == ("cpu", "gpu-dual", None)
    assert any("runs on the CPUs" in warning for warning in made.warnings)


def test_a_program_of_the_users_own_gets_the_gpus_and_is_told() -> None:
    made = plan(**OWN)
    assert (made.device, made.allocation.gpus_per_node, made.steps[0].placement.ranks) == ("gpu", 2, 2)
    assert (made.environment["HIDL_DEVICE"], made.environment["HIDL_GPUS_PER_RANK"]) == ("gpu", "1")


def test_all_steps_of_a_study_have_as_many_gpus_for_each_rank() -> None:
    made = plan(**OWN, site="frontera-rtx", scale="ranks=1,2")
    assert made.environment["HIDL_GPUS_PER_RANK"] == "2"


def test_a_stack_without_the_packages_is_refused_with_what_to_install() -> None:
    error = refused("kmeans")
    assert error.exit_code is ExitCode.MISSING_PRECONDITION
    assert error.message == "kmeans should compute on GPUs, but stack mpi cannot: it has no cupy"
    assert error.hint == (
        "hidl install mpi --with 'cupy-cuda12x[ctk]' --as mpi-gpu --site pitzer, then --stack mpi-gpu; "
        "or use --device cpu"
    )
    assert plan("kmeans", stack="with-cupy").device == "gpu"
    assert plan("kmeans", device="cpu").device == "cpu"


@pytest.mark.parametrize(
    ("site", "hint"),
    [
        (
            "frontier",
            "hidl install mpi --with cupy-rocm-7-0 --as mpi-gpu --site frontier, then --stack mpi-gpu; "
            "or use --device cpu",
        ),
        ("aurora", "use --env DIR with an environment that supports GPUs; or use --device cpu"),
        ("lassen", "use --env DIR with an environment that supports GPUs; or use --device cpu"),
    ],
)
def test_what_to_install_is_for_the_sites_gpus_and_machines(site: str, hint: str) -> None:
    assert refused("kmeans", site=site).hint == hint


@pytest.mark.parametrize(
    ("stack", "site"),
    [("horovod", "pitzer"), ("hyparflow", "vista"), ("tensorflow", "vista"), ("tensorflow", "frontier")],
)
def test_a_stack_of_a_framework_for_processors_is_refused_on_gpus(stack: str, site: str) -> None:
    error = refused(**OWN, stack=stack, site=site)
    assert error.exit_code is ExitCode.MISSING_PRECONDITION
    assert "tensorflow-cpu" in error.message
    assert "--device cpu" in str(error.hint)
    assert plan(**OWN, stack=stack, site=site, device="cpu").allocation.gpus_per_node is None


@pytest.mark.parametrize(
    ("site", "hint"),
    [
        (
            "perlmutter",
            "hidl install horovod-pytorch --site perlmutter, then --stack horovod-pytorch; or use --device cpu",
        ),
        ("frontier", "use --env DIR with an environment that supports GPUs; or use --device cpu"),
        (
            "pitzer",
            "use --env DIR with an environment that supports GPUs; or use --device cpu",
        ),  # V100: torch >= 2.11 has no kernels
    ],
)
def test_where_another_stack_serves_the_gpus_it_is_named(site: str, hint: str) -> None:
    error = refused(site=site, account="m0", parameters=["backend=horovod"])
    assert (error.exit_code, error.hint) == (ExitCode.MISSING_PRECONDITION, hint)
    on_gpus = plan("resnet50", site="perlmutter", account="m0", stack="horovod-pytorch")
    assert (on_gpus.device, on_gpus.stack) == ("gpu", "horovod-pytorch")


def test_a_stack_with_a_build_of_its_own_for_the_gpus_is_taken() -> None:
    assert plan(**OWN, stack="tensorflow").device == "gpu"
    assert plan("hyparflow-resnet").device == "gpu"
    assert plan("dask-merge", site="perlmutter", account="m0").device == "gpu"


@pytest.mark.parametrize(
    ("stack", "site", "installed", "needed", "hint"),
    [
        ("tensorflow", "pitzer", {"tensorflow-cpu": "2.21.0"}, [], "hidl install tensorflow --site pitzer"),
        ("tensorflow", "vista", {"tensorflow-cpu": "2.21.0"}, [], None),
        ("mpi4dask", "vista", {"dask": "2026.8.0"}, ["cupy", "cudf"], "hidl install mpi4dask --site vista"),
        ("mpi4dask", "frontier", {"dask": "2026.8.0"}, ["cupy"], "hidl install mpi4dask --site frontier"),
        ("mpi4dask", "frontier", {"dask": "2026.8.0"}, ["cupy", "cudf"], None),
        ("mpi4dask", "aurora", {"dask": "2026.8.0"}, ["cupy"], None),
    ],
)
def test_an_older_installation_without_it_is_refused_with_what_brings_it(
    stack: str, site: str, installed: dict[str, str], needed: list[str], hint: str | None
) -> None:
    node = load_site(site).node_type()
    assert target.reason_without_gpu(load_stack(stack), installed, needed, node)
    assert target.install_hint(load_stack(stack), needed, load_site(site), node) == hint


@pytest.mark.parametrize(
    ("stack", "needed", "hint"),
    [
        ("pytorch", ["torch"], "hidl install pytorch --site anvil --device gpu"),
        ("mpi4dask", ["cupy"], "hidl install mpi4dask --site anvil --device gpu"),
        (
            "horovod",
            ["torch"],
            "hidl install horovod-pytorch --site anvil --device gpu, then --stack horovod-pytorch",
        ),
        (
            "mpi",
            ["cupy"],
            "hidl install mpi --with 'cupy-cuda12x[ctk]' --as mpi-gpu --site anvil --device gpu, then --stack mpi-gpu",
        ),
    ],
)
def test_where_the_default_partition_has_no_gpus_the_hint_says_for_which_to_install(
    stack: str, needed: list[str], hint: str
) -> None:
    site = load_site("anvil")
    assert target.install_hint(load_stack(stack), needed, site, site.node_type("gpu")) == hint


@pytest.mark.parametrize(
    ("version", "reason"), [("2.13.0+cpu", "its torch 2.13.0+cpu is a CPU build"), ("2.13.0", None)]
)
def test_of_an_installed_stack_the_builds_count(version: str, reason: str | None) -> None:
    stack = load_stack("pytorch")
    assert target.reason_without_gpu(stack, {"torch": version, "numpy": "2.0"}, []) == reason
    assert target.reason_without_gpu(stack, {"torch": version}, ["torch"]) == reason


def test_any_build_of_a_package_serves() -> None:
    stack = load_stack("mpi")
    for name in ("cupy", "cupy-cuda13x", "cupy-rocm-5-0"):
        assert target.reason_without_gpu(stack, {name: "13.0"}, ["cupy"]) is None
    assert target.reason_without_gpu(stack, {"cupylike": "1"}, ["cupy"]) == "it has no cupy"


@pytest.mark.parametrize(
    ("workload", "places", "words"),
    [
        ("osu-latency", "D-H", "-x 100 -d cuda D H"),
        ("osu-put-latency", "H-D", "-x 100 -d cuda H D"),
        ("osu-mbw-mr", "D-D", "-x 5 -d cuda D D"),
        ("osu-allreduce", "D-D", "-T mpi_float -d cuda"),
    ],
)
def test_omb_in_c_takes_device_buffers_after_a_check_of_the_mpi_library(workload: str, places: str, words: str) -> None:
    made = plan(workload, parameters=["suite=c", f"places={places}"])
    (step,) = made.steps
    assert (made.device, made.stack) == ("gpu", "omb")
    assert step.preflight is not None
    assert " ".join(step.launch.words).endswith(f" {words}")
    assert " -m hidl_workloads.local_rank osu_" in " ".join(step.launch.words)
    assert "hidl_workloads.world --gpu-aware" in " ".join(step.preflight.words)


def test_omb_with_buffers_on_the_host_is_as_before() -> None:
    made = plan("osu-latency", parameters=["suite=c"])
    (step,) = made.steps
    assert step.preflight is not None
    assert made.device == "cpu"
    assert not {"cuda", "--gpu-aware"} & {*step.launch.words, *step.preflight.words}


def test_a_plan_of_before_devices_is_made_again_as_it_was() -> None:
    made = plan("osu-latency", parameters=["suite=c"])
    environment = {name: value for name, value in made.environment.items() if name != DEVICE}
    old = replace(made, device=None, environment=environment)
    again = planned_again(old, made.steps[0].placement, launcher(made.launcher))
    assert again.steps[0].launch.rest == made.steps[0].launch.rest


def test_both_suites_measure_device_buffers_where_the_stack_has_cupy() -> None:
    both = {"matrix": ["suite=c,python"], "parameters": ["places=D-D"]}
    error = refused("osu-latency", **both)
    assert (error.message, error.hint) == (
        "osu-latency should compute on GPUs, but stack omb cannot: it has no cupy",
        "hidl install omb --with 'cupy-cuda12x[ctk]' --as omb-gpu --site pitzer, then --stack omb-gpu",
    )
    assert plan("osu-latency", parameters=["places=D-D"], stack="with-cupy").device == "gpu"


@pytest.mark.parametrize(
    ("site", "installed_for", "reason", "hint"),
    [
        ("pitzer", "cuda", None, "hidl install omb --site pitzer"),
        ("pitzer", None, None, "hidl install omb --site pitzer"),
        (
            "pitzer",
            "cpu",
            "its osu-micro-benchmarks was compiled for CPUs only",
            "hidl install omb --site pitzer",
        ),
        ("frontier", None, "its osu-micro-benchmarks was compiled for CPUs only", None),
    ],
)
def test_what_a_stack_compiles_must_be_for_the_gpus(
    site: str, installed_for: str | None, reason: str | None, hint: str | None
) -> None:
    node, stack, needed = load_site(site).node_type(), load_stack("omb"), ["osu-micro-benchmarks"]
    assert target.reason_without_gpu(stack, {"mpich": "5.0.2"}, needed, node, accelerator=installed_for) == reason
    assert target.install_hint(stack, needed, load_site(site), node) == hint


def test_points_of_a_matrix_share_a_device() -> None:
    error = refused("omb-latency", matrix=["buffer=numpy,cupy"])
    assert error.message == "omb-latency: points of the matrix compute on different devices"
    assert plan("omb-latency", matrix=["buffer=numpy,bytearray"]).device == "cpu"


def test_checks_of_nodes_take_the_processors_where_nothing_computes_on_the_gpus() -> None:
    for workload in ("kmeans", "resnet50", "mpi-sanity"):
        made = plan(workload, any_device=True)
        assert (made.partition, made.device) == ("gpu-dual", "cpu" if workload == "kmeans" else "gpu")
    assert refused("kmeans", any_device=True, device="gpu").exit_code is ExitCode.MISSING_PRECONDITION


def test_what_an_mpi_library_needs_for_gpus_is_left_out_on_processors() -> None:
    on_gpus = plan("mpi-sanity", site="perlmutter", account="m0")
    on_cpus = plan("mpi-sanity", site="perlmutter", account="m0", device="cpu")
    assert [each.environment.get("MPICH_GPU_SUPPORT_ENABLED") for each in (on_gpus, on_cpus)] == ["1", None]


@pytest.mark.parametrize(
    ("site", "keys", "batch", "precision"),
    [
        ("perlmutter", {"account": "m0"}, 256, "bfloat16"),  # A100s of 40 GiB
        ("summit", {}, 64, "float32"),  # V100s of 16 GiB
        ("frontier", {}, 256, "bfloat16"),
        ("perlmutter", {"account": "m0", "device": "cpu"}, 8, "float32"),
        ("perlmutter", {"account": "m0", "parameters": ["batch=8"]}, 8, "bfloat16"),
        ("perlmutter", {"account": "m0", "matrix": ["precision=float32,bfloat16"]}, 256, "float32"),
        ("local", {}, 8, "float32"),
    ],
)
def test_the_defaults_fit_the_gpus(site: str, keys: dict[str, Any], batch: int, precision: str) -> None:
    made = plan(site=site, **keys)
    assert (made.parameters["batch"], made.parameters["precision"]) == (batch, precision)
    told = [each for each in made.warnings if each.startswith("defaults on these GPUs")]
    assert len(told) == (made.device == "gpu")
    assert all(f"batch={batch}" in each for each in told) or "parameters" in keys
