"""The patterns of the how-to page, each as it stands there, against output in the formats of the programs.

The samples in ``samples/programs/`` were written after the programs' sources and manuals (linked in the page).
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from hidl_cli.plan.program import with_metrics
from hidl_cli.plan.workload import Workload
from hidl_cli.runs.parsers.patterns import read_patterns
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "how-to" / "metrics-from-output.md"
SAMPLES = Path(__file__).parent / "samples" / "programs"
ROW = re.compile(r"^\| (?P<program>[^|]+) \| `(?P<word>'.*')` \| (?P<value>\S+) (?P<unit>\S+) of (?P<samples>\d+) \|$")
ROWS = [found for line in PAGE.read_text(encoding="utf-8").splitlines() if (found := ROW.match(line))]
#: A word of each row's program, as the page calls it -> its sample, and the number of ranks that printed it.
PROGRAMS = {
    "imagenet": ("imagenet", 1),
    "accuracy": ("imagenet", 1),
    "nanoGPT": ("nanogpt", 1),
    "tf_cnn": ("tf_cnn_benchmarks", 1),
    "its total": ("tf_cnn_benchmarks", 1),
    "LAMMPS": ("lammps", 4),
    "its wall": ("lammps", 4),
    "HPL": ("hpl", 8),
    "STREAM": ("stream", 1),
    "osu_latency": ("osu_latency", 2),
    "Horovod": ("horovod", 2),
    "GROMACS": ("gromacs", 1),
    "Spark": ("spark", 1),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "-", row["program"])[:30])
def test_a_pattern_of_the_page_finds_the_value(row: re.Match[str], tmp_path: Path) -> None:
    (sample, ranks) = next(known for word, known in PROGRAMS.items() if word in row["program"])
    for name in ("output.txt", "ranks/0.out"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(SAMPLES / f"{sample}.log", tmp_path / name)
    for name in ("errors.txt", "ranks/0.err"):
        (tmp_path / name).touch()
    plain = {"name": "w", "title": "t", "program": {"command": ["x"]}, "stacks": [{"stack": "mpi"}]}
    (word,) = shlex.split(row["word"])
    workload = with_metrics(Workload.model_validate(plain), [word], judged="accuracy" not in row["program"])
    (found,) = read_patterns(workload.program.patterns, workload.metrics, tmp_path, ranks=ranks).values()
    assert found["value"] == pytest.approx(float(row["value"]))
    assert found["unit"] == row["unit"]
    assert len(found["samples"]) == int(row["samples"])


def test_every_sample_has_a_row() -> None:
    read = {sample for row in ROWS for word, (sample, _) in PROGRAMS.items() if word in row["program"]}
    assert read == {file.stem for file in SAMPLES.glob("*.log")}
    assert len(ROWS) == len(PROGRAMS)


def test_the_file_of_the_page_is_valid(tmp_path: Path, config: Path) -> None:
    from hidl_cli.plan.checks import load_workload

    (text,) = re.findall(r"^```yaml\n# ~/.config/hidl/workloads/water.yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (config / "workloads").mkdir(parents=True)
    (config / "workloads" / "water.yaml").write_text(text)
    workload = load_workload("water")
    shutil.copy(SAMPLES / "gromacs.log", tmp_path / "output.txt")
    (tmp_path / "errors.txt").touch()
    found = read_patterns(workload.program.patterns, workload.metrics, tmp_path, ranks=1)
    assert {name: one["value"] for name, one in found.items()} == {
        "ns_per_day": 446.59,
        "hours_per_ns": 0.054,
        "wall_time": 3.87,
    }
