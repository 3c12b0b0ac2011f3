"""Which GPUs a rank takes, by what its node's tools list and what its job may see."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hidl_workloads import gpus
from hidl_workloads.gpus import Gpu, NoGpu
from tests.workloads import gpu_tools, ranks

TWO = [Gpu("GPU-aaaa", "A100", 40960, "580"), Gpu("GPU-bbbb", "A100", 40960, "580")]
QUERY = "GPU-aaaa, NVIDIA A100, 40960, 580.65, {mode}\nGPU-bbbb, NVIDIA A100, 40960, 580.65, {mode}\n"
AMD = json.dumps(
    {
        "card0": {"Card Series": "AMD Instinct MI250X", "VRAM Total Memory (B)": str(64 * 2**30)},
        "card1": {"Card Series": "AMD Instinct MI250X", "VRAM Total Memory (B)": str(64 * 2**30)},
        "system": {"Driver version": "6.3.6"},
    }
)
INTEL = json.dumps({"device_list": [{"device_id": 0, "device_name": "Intel(R) Data Center GPU Max 1550"}]})


def answers(**texts: str) -> Callable[[Sequence[str]], tuple[int | None, str]]:
    """Tools that print these texts; others are not there. ``L``: of nvidia-smi -L."""

    def ask(argv: Sequence[str]) -> tuple[int | None, str]:
        name = "L" if "-L" in argv else argv[0].replace("-", "_")
        return (0, texts[name]) if name in texts else (None, f"no {argv[0]} on PATH")

    return ask


def taken(local_rank: int, tools: Callable[[Sequence[str]], tuple[int | None, str]], **given: str) -> dict[str, str]:
    """The environment of a rank that has taken its GPUs."""
    environment = dict(given)
    gpus.take(environment, local_rank, ask=tools)
    return environment


@pytest.mark.parametrize(
    ("local_rank", "given", "own", "visible"),
    [
        (0, {}, "GPU-aaaa", "GPU-aaaa,GPU-bbbb"),
        (1, {}, "GPU-bbbb", "GPU-bbbb,GPU-aaaa"),
        (2, {}, "GPU-aaaa", "GPU-aaaa,GPU-bbbb"),
        (1, {"CUDA_VISIBLE_DEVICES": "0,1"}, "1", "1,0"),
        (1, {"CUDA_VISIBLE_DEVICES": "GPU-b"}, "GPU-b", "GPU-b"),
        (0, {"CUDA_VISIBLE_DEVICES": "1,0,7,0"}, "1", "1,0"),
        (0, {"HIDL_GPUS_PER_RANK": "2"}, "GPU-aaaa,GPU-bbbb", "GPU-aaaa,GPU-bbbb"),
    ],
    ids=["first", "second", "in turn", "numbers", "an identifier's begin", "up to the first unknown", "two each"],
)
def test_each_rank_takes_the_gpu_of_its_local_rank_and_sees_it_first(
    local_rank: int, given: dict[str, str], own: str, visible: str
) -> None:
    environment = taken(local_rank, answers(nvidia_smi=QUERY.format(mode="Disabled")), **given)
    assert (environment["HIDL_GPU"], environment["CUDA_VISIBLE_DEVICES"]) == (own, visible)
    assert json.loads(environment["HIDL_GPU_FACTS"])[0]["model"] == "NVIDIA A100"


def test_a_rank_that_takes_again_chooses_among_what_its_job_sees() -> None:
    tools = answers(nvidia_smi=QUERY.format(mode="Disabled"))
    environment = taken(1, tools)
    gpus.take(environment, 0, ask=tools)
    assert (environment["HIDL_GPU"], environment["CUDA_VISIBLE_DEVICES"]) == ("GPU-aaaa", "GPU-aaaa,GPU-bbbb")


def test_a_whole_identifier_counts_before_those_that_begin_with_it() -> None:
    found = [Gpu(f"GPU-aaaa-{number}") for number in range(16)]
    assert [gpus.find(gpu.id, found) for gpu in found] == found
    assert gpus.find("GPU-aaaa", found) is None


def test_of_mig_instances_a_rank_sees_its_own_alone() -> None:
    query = "GPU-aaaa-0, NVIDIA A100-SXM4-40GB, 40960, 580.65, Enabled\n"
    environment = taken(1, answers(nvidia_smi=query, L=gpu_tools.MIG))
    assert environment["CUDA_VISIBLE_DEVICES"] == "MIG-2222"
    (found,) = json.loads(environment["HIDL_GPU_FACTS"])
    assert (found["model"], found["memory_mib"]) == ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5120)


@pytest.mark.parametrize(
    ("tools", "variable", "model", "memory"),
    [
        (answers(rocm_smi=AMD), "ROCR_VISIBLE_DEVICES", "AMD Instinct MI250X", 65536),
        (answers(xpu_smi=INTEL), "ZE_AFFINITY_MASK", "Intel(R) Data Center GPU Max 1550", None),
    ],
)
def test_gpus_of_other_makers_have_variables_of_their_own(
    tools: Callable[[Sequence[str]], tuple[int | None, str]], variable: str, model: str, memory: int | None
) -> None:
    environment = taken(0, tools)
    (found,) = json.loads(environment["HIDL_GPU_FACTS"])
    assert (environment[variable].split(",")[0], found["model"], found["memory_mib"]) == ("0", model, memory)


def test_slurms_variable_for_amd_counts_before_the_one_for_cuda() -> None:
    environment = taken(1, answers(rocm_smi=AMD), ROCR_VISIBLE_DEVICES="0,1", CUDA_VISIBLE_DEVICES="0,1")
    assert (environment["ROCR_VISIBLE_DEVICES"], environment["CUDA_VISIBLE_DEVICES"]) == ("1,0", "0,1")


def test_without_nvidia_smi_the_kernels_driver_tells(tmp_path: Path) -> None:
    (tmp_path / "gpus/0000:07:00.0").mkdir(parents=True)
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n")
    (tmp_path / "gpus/0000:07:00.0/information").write_text("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-cccc\n")
    assert gpus.list_gpus(answers(), tmp_path)[0] == [Gpu("GPU-cccc", "NVIDIA H100", None, "580.65.06")]


@pytest.mark.parametrize(("named", "why"), [("", "is ''"), ("-1", "is '-1'"), ("2,0", "the node has 2 GPU(s)")])
def test_a_job_that_may_see_none_has_none(named: str, why: str) -> None:
    with pytest.raises(NoGpu, match=r"CUDA_VISIBLE_DEVICES") as refused:
        taken(0, answers(nvidia_smi=QUERY.format(mode="Disabled")), CUDA_VISIBLE_DEVICES=named)
    assert why in str(refused.value)


def test_the_reason_names_all_that_was_asked(tmp_path: Path) -> None:
    with pytest.raises(NoGpu, match="no nvidia-smi on PATH; no rocm-smi on PATH; no xpu-smi on PATH"):
        gpus.list_gpus(answers(), tmp_path)


@pytest.fixture
def mpi(stack_prefix: Callable[[str], Path]) -> Path:
    return stack_prefix("mpi")


def test_ranks_take_their_gpus_before_mpi_and_name_them_in_the_metrics(mpi: Path, tmp_path: Path) -> None:
    document = tmp_path / "metrics.json"
    path = f"{gpu_tools.nvidia(tmp_path, count=2)}:/usr/bin:/bin"
    variables = {"PATH": path, "HIDL_DEVICE": "gpu", "HIDL_METRICS": str(document)}
    completed = ranks.run(mpi, 2, "-m", "hidl_workloads.world", "hidl_workloads.mpi_sanity", **variables)
    assert completed.status == 0, completed.stderr
    assert "ok   GPUs: assigned to the ranks in turn: 2 x NVIDIA A100-SXM4-40GB" in completed.stdout
    world = json.loads(document.read_text())["world"]
    assert world["device"] == "gpu"
    assert [rank[0]["id"] for rank in world["gpus"]] == ["GPU-aaaa-0", "GPU-aaaa-1"]
    assert (world["gpus"][0][0]["memory_mib"], world["gpus"][0][0]["driver"]) == (40960, "580.65.06")


def test_on_processors_no_tool_is_asked(mpi: Path, tmp_path: Path) -> None:
    document = tmp_path / "metrics.json"
    variables = {"HIDL_DEVICE": "cpu", "HIDL_METRICS": str(document)}
    completed = ranks.run(mpi, 2, "-m", "hidl_workloads.world", "hidl_workloads.mpi_sanity", **variables)
    assert completed.status == 0, completed.stderr
    world = json.loads(document.read_text())["world"]
    assert (world["device"], "gpus" in world) == ("cpu", False)


@pytest.mark.parametrize("driver", ["none", "no device"])
def test_without_a_gpu_all_ranks_end_with_88_and_the_cause_once(mpi: Path, tmp_path: Path, driver: str) -> None:
    tools = gpu_tools.nvidia_without_devices(tmp_path) if driver == "no device" else tmp_path
    variables = {"PATH": f"{tools}:/usr/bin:/bin", "HIDL_DEVICE": "gpu"}
    completed = ranks.run(mpi, 2, "-m", "hidl_workloads.world", "tells", **variables)
    assert completed.status == 88
    assert completed.stderr.count("hidl: no GPU for rank 0 on ") == 1
    assert "2 of 2 ranks" in completed.stderr
    assert ("no nvidia-smi on PATH" if driver == "none" else "No devices were found (status 6)") in completed.stderr
    assert "--device cpu" in completed.stderr


def test_an_mpi_library_that_reads_no_gpu_memory_ends_a_program_that_gives_it_some(mpi: Path, tmp_path: Path) -> None:
    world = ("-m", "hidl_workloads.world", "--gpu-aware")
    path = f"{gpu_tools.nvidia(tmp_path, count=2)}:/usr/bin:/bin"
    completed = ranks.run(mpi, 2, *world, PATH=path, HIDL_DEVICE="gpu")
    assert completed.status == 89
    assert completed.stderr.count("in GPU memory, which this MPI library does not read (libmpi.so.12") == 1
    assert ranks.run(mpi, 2, *world, PATH=path, HIDL_DEVICE="cpu").status == 0


def test_of_a_program_that_is_no_module_the_check_names_the_gpus(mpi: Path, tmp_path: Path) -> None:
    document = tmp_path / "metrics.json"
    path = f"{gpu_tools.nvidia(tmp_path, count=2)}:/usr/bin:/bin"
    variables = {"PATH": path, "HIDL_DEVICE": "gpu", "HIDL_METRICS": str(document)}
    completed = ranks.run(mpi, 2, "-m", "hidl_workloads.world", **variables)
    assert completed.status == 0, completed.stderr
    world = json.loads(document.with_name("world.json").read_text())
    assert [rank[0]["id"] for rank in world["gpus"]] == ["GPU-aaaa-0", "GPU-aaaa-1"]
    assert not document.exists()


def test_ranks_on_one_of_two_gpus_are_a_fault_of_the_placement(mpi: Path, tmp_path: Path) -> None:
    path = f"{gpu_tools.nvidia(tmp_path, count=2)}:/usr/bin:/bin"
    variables = {"PATH": path, "HIDL_DEVICE": "gpu", "MPI_LOCALRANKID": "0", "MV2_COMM_WORLD_LOCAL_RANK": "0"}
    completed = ranks.run(mpi, 2, "-m", "hidl_workloads.world", "hidl_workloads.mpi_sanity", **variables)
    assert completed.status == 1
    assert "GPUs: " in completed.stderr
    assert "1 of 2 GPUs in use (GPU-aaaa-0: 2 ranks)" in completed.stderr


def test_a_program_that_chooses_its_gpu_by_its_local_rank_sees_them_as_the_scheduler_gave_them(
    mpi: Path, tmp_path: Path
) -> None:
    (tmp_path / "shows.py").write_text(
        "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['HIDL_GPU'], flush=True)\n"
    )
    variables = {
        "PATH": f"{gpu_tools.nvidia(tmp_path, count=2)}:/usr/bin:/bin",
        "PYTHONPATH": f"{ranks.REPOSITORY}:{tmp_path}",
        "HIDL_DEVICE": "gpu",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    own_first = ranks.run(mpi, 2, "-m", "hidl_workloads.world", "shows", **variables)
    assert sorted(own_first.stdout.splitlines()) == ["0,1 0", "1,0 1"], own_first.stderr
    chooses = ranks.run(mpi, 2, "-m", "hidl_workloads.world", "--chooses-gpu", "shows", **variables)
    assert sorted(chooses.stdout.splitlines()) == ["0,1 0", "0,1 1"], chooses.stderr
