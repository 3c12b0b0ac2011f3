"""The energy of a program: generated counters that wrap, a stand-in for NVML, and a real training."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_workloads.energy import Counter, NotMeasured, Tally, Used, add_up, find_counters
from tests.waiting import until
from tests.workloads import ranks

#: The range of package counters of many Xeons, in microjoules.
RANGE = 262_143_328_850


def _zone(sysfs: Path, name: str, label: str, count: int, wraps: int = RANGE) -> Path:
    zone = sysfs / "class" / "powercap" / name
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{label}\n")
    (zone / "max_energy_range_uj").write_text(f"{wraps}\n")
    (zone / "energy_uj").write_text(f"{count}\n")
    return zone / "energy_uj"


def _count(file: Path, count: int) -> None:
    """Replace a count, which a reader sees as a whole, as in sysfs."""
    (file.parent / ".new").write_text(f"{count}\n")
    (file.parent / ".new").replace(file)


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, list[Path]]:
    """A tree of counters of two processors with memory, as ``/sys``, and the files of those that count."""
    files = [
        _zone(tmp_path, "intel-rapl:0", "package-0", 1_000),
        _zone(tmp_path, "intel-rapl:1", "package-1", RANGE - 1),
        _zone(tmp_path, "intel-rapl:0:1", "dram", 7),
        _zone(tmp_path, "intel-rapl:1:1", "dram", RANGE // 2),
    ]
    for name, label in (("intel-rapl:0:0", "core"), ("intel-rapl-mmio:0", "package-0"), ("intel-rapl:2", "psys")):
        _zone(tmp_path, name, label, 5)
    return tmp_path, files


@pytest.mark.exact
def test_joules_are_exact_over_several_wraps(machine: tuple[Path, list[Path]]) -> None:
    sysfs, files = machine
    counters, reasons = find_counters(sysfs=sysfs)
    assert [each.covers for each in counters] == ["package", "package", "dram", "dram"]
    assert reasons == {"node": "no pm_counters"}
    reads = [0]
    for each in counters:
        each.read = _counted(each.read, reads)
    used = [0, 0, 0, 0]
    tally = Tally(counters, reasons, interval=0.001)
    tally.start()
    for step in range(40):
        # Each file changes only after all of them were read, as counters are read much more often than they wrap.
        for number, file in enumerate(files):
            more = RANGE * (step * 7 + number * 3 + 1) // 97 % RANGE
            used[number] += more
            _count(file, (int(file.read_text()) + more) % RANGE)
        before = reads[0]
        until(lambda before=before: reads[0] > before + 8)  # type: ignore[misc]
    found = tally.stop()
    assert found.counted == {"package": ("powercap", used[0] + used[1]), "dram": ("powercap", used[2] + used[3])}
    assert min(used) > 5 * RANGE
    energy = add_up([found, found], 1000, "image")
    assert {each.name: each.value for each in energy.metrics()} == {
        "package_energy": 2 * (used[0] + used[1]) / 1e6 / 1000,
        "dram_energy": 2 * (used[2] + used[3]) / 1e6 / 1000,
    }
    assert energy.as_document()["not_measured"] == {"node": "no pm_counters"}


def _counted(read: Callable[[], int], reads: list[int]) -> Callable[[], int]:
    def counted() -> int:
        value = read()
        reads[0] += 1
        return value

    return counted


def test_a_counter_that_was_not_read_for_too_long_is_not_measured() -> None:
    small = Counter("package", "powercap", lambda: 5, wraps=1_000)  # wraps in 0.5 us at 2 kW
    small.update()
    with pytest.raises(NotMeasured, match="may have wrapped unseen"):
        small.update()
    counts = iter([5, 4])
    backwards = Counter("node", "pm_counters", lambda: next(counts))
    backwards.update()
    with pytest.raises(NotMeasured, match="went back"):
        backwards.update()


def test_a_counter_that_cannot_be_read_is_named(machine: tuple[Path, list[Path]]) -> None:
    sysfs, files = machine
    files[1].unlink()
    files[1].mkdir()  # root may read any file
    counters, reasons = find_counters(sysfs=sysfs)
    assert {each.covers for each in counters} == {"dram"}
    assert reasons["package"] == f"{files[1]}: Is a directory; no pm_counters"


def test_a_counter_that_disappears_is_not_measured(machine: tuple[Path, list[Path]]) -> None:
    sysfs, files = machine
    tally = Tally(*find_counters(sysfs=sysfs))
    tally.start()
    files[0].unlink()
    _count(files[2], 1_000_007)
    found = tally.stop()
    assert found.counted == {"dram": ("powercap", 1_000_000)}
    assert found.reasons["package"].endswith("intel-rapl:0/energy_uj: No such file or directory")


@pytest.mark.exact
def test_a_cray_node(tmp_path: Path) -> None:
    directory = tmp_path / "cray" / "pm_counters"
    directory.mkdir(parents=True)
    names = ("energy", "cpu_energy", "memory_energy", "accel0_energy", "accel1_energy")
    for number, name in enumerate(names):
        (directory / name).write_text(f"{100 * number} J 1234567 us\n")
    (directory / "power").write_text("250 W 1234567 us\n")
    tally = Tally(*find_counters(["0"], tmp_path))
    tally.start()
    for number, name in enumerate(names):
        (directory / name).write_text(f"{101 * number + 10} J 2234567 us\n")
    found = tally.stop()
    assert {covers: joules // 10**6 for covers, (_, joules) in found.counted.items()} == {
        "node": 10,
        "package": 11,
        "dram": 12,
        "gpu": 13 + 14,
    }
    assert {source for source, _ in found.counted.values()} == {"pm_counters"}


NVML = """
#include <string.h>
#include <stdio.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = strcmp(uuid, "GPU-1") ? NULL : (void *)1;
    return *device ? 0 : 6;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules)
{
    FILE *file = fopen("energy", "r");
    int read = file && fscanf(file, "%llu", millijoules) == 1;
    if (file)
        fclose(file);
    return read ? 0 : 3;
}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler for the stand-in")
def test_gpus_are_read_by_nvml(tmp_path: Path) -> None:
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "nvml.c", "-o", library], check=True)
    program = (
        "import sys, json; from pathlib import Path; from hidl_workloads.energy import *\n"
        "Path('energy').write_text('5000'); tally = Tally(*find_counters(sys.argv[1:], Path('none'))); tally.start()\n"
        "Path('energy').write_text('5123'); found = tally.stop(); print(json.dumps([found.counted, found.reasons]))"
    )

    def measured(*gpus: str) -> tuple[dict[str, object], dict[str, str]]:
        done = subprocess.run(
            [sys.executable, "-c", program, *gpus],
            cwd=tmp_path,
            env={"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ranks.REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        )
        counted, reasons = json.loads(done.stdout)
        return counted, reasons

    assert measured("GPU-1")[0] == {"gpu": ["NVML", 123_000]}
    assert measured("GPU-1", "GPU-2")[1]["gpu"] == "NVML: nvmlDeviceGetHandleByUUID returned 6; no pm_counters"
    assert measured("MIG-1")[1]["gpu"].startswith("NVML: the energy of a MIG instance is not counted")


def test_only_what_all_nodes_measure_is_a_figure() -> None:
    one = Used({"package": ("powercap", 10), "gpu": ("NVML", 1)}, {"dram": "powercap: no dram counters"})
    other = Used({"gpu": ("pm_counters", 1)}, {"package": "permission denied", "dram": "powercap: no dram counters"})
    energy = add_up([one, other], 10, "step")
    assert energy.metrics() == []
    assert energy.reasons == {
        "package": "1 of 2 nodes: permission denied",
        "dram": "powercap: no dram counters",
        "gpu": "nodes have different counters: NVML, pm_counters",
    }


@pytest.mark.real
@pytest.mark.exact
@pytest.mark.parametrize("nolocal", ["0", "1"])
def test_the_energy_of_a_node_counts_once(
    stack_prefix: Callable[[str], Path], machine: tuple[Path, list[Path]], tmp_path: Path, nolocal: str
) -> None:
    """Also if MPI takes each rank for a node."""
    sysfs, files = machine
    variables = {"HIDL_SYSFS": str(sysfs), "MPIR_CVAR_NOLOCAL": nolocal}
    found = ranks.results(stack_prefix("mpi"), 3, tmp_path, "nodes_seen", str(files[0]), **variables)
    package, dram = found["measured"]
    assert (package["covers"], package["joules"], package["nodes"], package["items"]) == ("package", 100, 1, 50)
    assert dram["joules"] == 0
    assert found["ranks_per_node"] == 3


@pytest.mark.real
@pytest.mark.exact
def test_a_training_reports_joules_for_each_image(
    stack_prefix: Callable[[str], Path], machine: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    sysfs, files = machine
    words = ("--framework=torch", "--image_size=32", "--batch=2", "--steps=3", "--warmup=1")
    stopped = threading.Event()

    def count() -> None:
        while not stopped.wait(0.01):
            _count(files[0], int(files[0].read_text()) + 1_000_000)

    counting = threading.Thread(target=count)
    counting.start()
    try:
        done = ranks.run(
            *(stack_prefix("pytorch"), 2, "-m", "hidl_workloads.world", "hidl_workloads.resnet50", *words),
            HIDL_METRICS=str(tmp_path / "metrics.json"),
            HIDL_SYSFS=str(sysfs),
        )
    finally:
        stopped.set()
        counting.join()
    assert done.status == 0, done.stderr
    document = json.loads((tmp_path / "metrics.json").read_text())
    package, dram = document["energy"]["measured"]
    assert (package["covers"], package["source"], package["nodes"], package["items"]) == ("package", "powercap", 1, 12)
    assert package["joules"] >= 1
    assert package["joules"] == int(package["joules"]), "each count was one joule"
    assert dram["joules"] == 0
    (metric,) = (each for each in document["metrics"] if each["name"] == "package_energy")
    assert metric == {
        "name": "package_energy",
        "value": package["joules"] / 12,
        "unit": "J/image",
        "samples": [package["joules"] / 12],
    }
