"""The machine's facts, from what /proc, /sys and nvidia-smi show on machines of several shapes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hidl_cli.site import machine as facts
from hidl_cli.site.machine import LocalGpus, Machine, gpus, machine

UNLIMITED_V1 = "9223372036854771712\n"


@dataclass(frozen=True)
class Shape:
    """What the kernel of one machine shows: ``siblings`` and ``package`` are functions of the processor's number."""

    processors: range
    siblings: Callable[[int], str]
    package: Callable[[int], int]
    cpuinfo: str
    memory_kb: int
    cgroup: str
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, root: Path) -> Path:
        texts = {
            "proc/cpuinfo": self.cpuinfo * 2,
            "proc/meminfo": f"MemTotal:       {self.memory_kb} kB\nMemFree:        1111 kB\n",
            "proc/self/cgroup": self.cgroup,
            **self.files,
        }
        for number in self.processors:
            topology = f"sys/devices/system/cpu/cpu{number}/topology"
            texts[f"{topology}/thread_siblings_list"] = f"{self.siblings(number)}\n"
            texts[f"{topology}/physical_package_id"] = f"{self.package(number)}\n"
        for name, text in texts.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return root


def x86(model: str) -> str:
    return f"processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: {model}\n\n"


LAPTOP = Shape(
    range(8),
    lambda n: f"{n % 4},{n % 4 + 4}",
    lambda n: 0,
    x86("11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz"),
    16_042_220,
    "0::/user.slice/user-1000.slice/session-2.scope\n",
    {
        "sys/fs/cgroup/user.slice/user-1000.slice/memory.max": "max\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/cpu.max": "max 100000\n",
    },
)
SERVER_IN_A_SLURM_JOB = Shape(
    range(56),
    str,
    lambda n: n % 2,
    x86("Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz"),
    196_669_460,
    "9:cpuset:/slurm/uid_1000/job_42\n5:cpuacct,cpu:/slurm/uid_1000/job_42\n4:memory:/slurm/uid_1000/job_42/step_0\n",
    {
        "sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/job_42/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/job_42/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/slurm/uid_1000/job_42/step_0/memory.limit_in_bytes": UNLIMITED_V1,
        "sys/fs/cgroup/memory/slurm/uid_1000/job_42/memory.limit_in_bytes": f"{150 * 2**30}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
    },
)
CONTAINER = Shape(
    range(16),
    lambda n: f"{n // 2 * 2}-{n // 2 * 2 + 1}",
    lambda n: 0,
    x86("AMD EPYC 7R13 Processor"),
    64_000_000,
    "0::/\n",
    {"sys/fs/cgroup/cpu.max": "350000 100000\n", "sys/fs/cgroup/memory.max": f"{2 * 2**30}\n"},
)
CONTAINER_V1 = Shape(
    range(4),
    str,
    lambda n: 0,
    x86("Intel(R) Xeon(R) CPU"),
    16_000_000,
    "3:memory:/docker/0123abcd\n2:cpu,cpuacct:/docker/0123abcd\n1:name=systemd:/docker/0123abcd\n0::/\n",
    {
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{512 * 2**20}\n",
    },
)
GPU_NODE = Shape(
    range(256),
    lambda n: f"{n % 128},{n % 128 + 128}",
    lambda n: n % 128 // 64,
    x86("AMD EPYC 7763 64-Core Processor"),
    527_953_836,
    "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
    {"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max": "max\n"},
)
POWER9 = Shape(
    range(160),
    lambda n: f"{n // 4 * 4}-{n // 4 * 4 + 3}",
    lambda n: 0 if n < 80 else 8,
    "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 3800.000000MHz\n\n",
    268_435_456,
    "0::/\n",
)
ARM = Shape(
    range(72),
    str,
    lambda n: 0,
    "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\n",
    251_658_240,
    "0::/\n",
)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (LAPTOP, ("11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz", 1, 4, 2, 15.3)),
        (SERVER_IN_A_SLURM_JOB, ("Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz", 2, 56, 1, 150.0)),
        (CONTAINER, ("AMD EPYC 7R13 Processor", 1, 3, 2, 2.0)),
        (CONTAINER_V1, ("Intel(R) Xeon(R) CPU", 1, 1, 1, 0.5)),
        (GPU_NODE, ("AMD EPYC 7763 64-Core Processor", 2, 128, 2, 503.5)),
        (POWER9, ("POWER9, altivec supported", 2, 40, 4, 256.0)),
        (ARM, (None, 1, 72, 1, 240.0)),
    ],
    ids=["laptop", "slurm job", "container", "container v1", "gpu node", "power9", "arm"],
)
def test_a_machine_is_described_by_what_its_kernel_shows(
    tmp_path: Path, shape: Shape, expected: tuple[str | None, int, int, int, float]
) -> None:
    assert machine(shape.write(tmp_path), processors=shape.processors) == Machine(os.uname().machine, *expected)


def test_only_what_the_process_may_use_counts(tmp_path: Path) -> None:
    """A job of 8 cores with both hardware threads, on the second socket of a large node."""
    found = machine(GPU_NODE.write(tmp_path), processors=[*range(64, 72), *range(192, 200)])

    assert (found.sockets, found.cores, found.threads_per_core) == (1, 8, 2)


def test_sockets_with_different_numbers_of_usable_cores_are_unknown(tmp_path: Path) -> None:
    """As in a container of six cores of the first socket and two of the second."""
    found = machine(GPU_NODE.write(tmp_path), processors=[*range(6), *range(64, 66)])

    assert (found.sockets, found.cores) == (None, 8)


def test_one_hardware_thread_of_each_core_is_one_thread_per_core(tmp_path: Path) -> None:
    found = machine(LAPTOP.write(tmp_path), processors=range(4))

    assert (found.cores, found.threads_per_core) == (4, 1)


def test_what_cannot_be_found_is_unknown_and_never_an_error(tmp_path: Path) -> None:
    assert machine(tmp_path, processors=range(6)) == Machine(os.uname().machine, None, None, 6, None, None)


def test_affinity_of_this_very_process_is_seen() -> None:
    """As under taskset, or in a batch job: a child that is bound to one processor has one core."""
    code = (
        "import os\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from hidl_cli.site.machine import machine\n"
        "print(machine().cores, machine().threads_per_core)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout in ("1 1\n", "1 None\n")


@pytest.fixture
def nvidia_smi(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """``nvidia_smi(script)``: an environment where nvidia-smi is that shell script."""

    def install(script: str) -> dict[str, str]:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    return install


ASKS_FOR_NAMES = '[ "$*" = "--query-gpu=name --format=csv,noheader" ] || exit 2\n'


def test_gpus_are_what_nvidia_smi_names(tmp_path: Path, nvidia_smi: Callable[[str], dict[str, str]]) -> None:
    environment = nvidia_smi(ASKS_FOR_NAMES + "for i in 0 1 2 3; do echo 'NVIDIA A100-SXM4-40GB'; done")

    assert gpus(tmp_path, environment) == LocalGpus(4, "NVIDIA A100-SXM4-40GB")


def test_gpus_of_two_models_are_both_named(tmp_path: Path, nvidia_smi: Callable[[str], dict[str, str]]) -> None:
    environment = nvidia_smi("echo 'Tesla T4'; echo 'NVIDIA A40'; echo 'Tesla T4'")

    assert gpus(tmp_path, environment) == LocalGpus(3, "Tesla T4, NVIDIA A40")


def test_no_nvidia_smi_means_no_gpu(tmp_path: Path) -> None:
    assert gpus(tmp_path, {"PATH": str(tmp_path)}) == LocalGpus(0)


@pytest.mark.parametrize(
    "script",
    [
        "echo 'No devices were found'; exit 6",
        "echo 'No devices were found'",
        'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9',
    ],
    ids=["no device", "no device, old nvidia-smi", "no driver, as on a login node"],
)
def test_a_machine_without_device_or_driver_has_no_gpu(
    tmp_path: Path, nvidia_smi: Callable[[str], dict[str, str]], script: str
) -> None:
    assert gpus(tmp_path, nvidia_smi(script)) == LocalGpus(0)


def test_a_driver_that_does_not_answer_makes_gpus_unknown_with_the_reason(
    tmp_path: Path, nvidia_smi: Callable[[str], dict[str, str]]
) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    found = gpus(tmp_path, nvidia_smi("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 9"))

    assert (found.gpus, found.gpu_model) == (None, None)
    assert found.reason is not None
    assert "version mismatch" in found.reason


def test_an_nvidia_smi_that_hangs_is_ended(
    tmp_path: Path, nvidia_smi: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_QUERY_SECONDS", 0.2)

    found = gpus(tmp_path, nvidia_smi("sleep 6000"))  # beyond the time limit of a test

    assert found.gpus is None
    assert "0.2 s" in (found.reason or "")
