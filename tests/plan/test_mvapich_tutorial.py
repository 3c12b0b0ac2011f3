"""The launch lines of the MVAPICH tutorial as hidl's users type them: golden scripts, and the page that shows both.

After a change that is meant: HIDL_WRITE_GOLDEN=1 pytest tests/plan/test_mvapich_tutorial.py, and read the difference.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tests.conftest import REPOSITORY, Hidl
from tests.plan import golden_scripts

PAGE = REPOSITORY / "docs" / "reference" / "mvapich-tutorial.md"
VARIABLE = re.compile(r"(MV2_\w+|LD_PRELOAD)=(\S+)")
PRELOAD = {
    "LD_PRELOAD": "`MV2_SUPPORT_DL=1` is in its place, as the guide of MVAPICH2-GDR 2.3.7 asks (section 7.3); with a "
    "library before 2.3.4 hidl preloads"
}
HOST_MEMORY = {
    "LD_PRELOAD": "the arrays are in host memory: mpi4py loads the site's library when it is imported, and nothing of "
    "that library has to come before Python"
}
GDRCOPY = "MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so"
DASK = (
    "LD_PRELOAD=$MPILIB/lib/libmpi.so $MPILIB/bin/mpirun_rsh -export-all -np 4 -hostfile hosts MV2_USE_CUDA=1 "
    f"MV2_USE_GDRCOPY=1 {GDRCOPY} MV2_CPU_BINDING_LEVEL=SOCKET MV2_CPU_BINDING_POLICY=SCATTER python "
)
DASK_ON_CPUS = (
    "LD_PRELOAD=$MPILIB/lib/libmpi.so $MPILIB/bin/mpirun_rsh -export-all -np 4 -hostfile hosts "
    "MV2_CPU_BINDING_LEVEL=SOCKET MV2_CPU_BINDING_POLICY=SCATTER python "
)
BOUND = "--tune MV2_CPU_BINDING_LEVEL=SOCKET --tune MV2_CPU_BINDING_POLICY=SCATTER"
TUNED = f"--tune MV2_USE_GDRCOPY=1 {BOUND}"


@dataclass(frozen=True)
class Line:
    """``theirs``: the tutorial's line; ``ours``: hidl's; ``instead``: why a variable of theirs is not set."""

    name: str
    title: str
    theirs: str
    ours: str
    instead: Mapping[str, str] = field(default_factory=dict)


LINES = (
    Line(
        "tutorial-horovod",
        "Horovod's synthetic benchmark on two nodes",
        "mpirun_rsh -np 2 gpu11 gpu12 MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread "
        f"MV2_USE_RDMA_CM=0 {GDRCOPY} LD_PRELOAD=mv2-gdr/lib/libmpi.so python pytorch_synthetic_benchmark.py "
        "--batch-size 64 --num-iters=5",
        "hidl run horovod-synthetic --site ri2 --hosts gpu11,gpu12 --stack horovod-pytorch-mpi "
        "--set script=/home/user/pytorch_synthetic_benchmark.py --set batch=64 --set iterations=5",
        PRELOAD,
    ),
    Line(
        "tutorial-cupy",
        "The sum of an array and its transpose, with CuPy and Dask",
        f"{DASK}cupy_sum_mpi.py",
        f"hidl run dask-transpose --site ri2 --hosts gpu[11-14] {TUNED}",
        PRELOAD,
    ),
    Line(
        "tutorial-cudf",
        "The sums of a data frame's columns, with cuDF and Dask",
        f"{DASK}...",
        f"hidl run dask-dataframe-sum --site ri2 --hosts gpu[11-14] {TUNED}",
        PRELOAD,
    ),
    Line(
        "tutorial-merge",
        "The merge of two data frames, with cuDF and Dask",
        f"{DASK}cudf_merge_mpi.py --type gpu --protocol mpi --runs 20 --chunk-size 100000000",
        f"hidl run dask-merge --site ri2 --hosts gpu[11-14] --set runs=20 --set chunk_size=100000000 {TUNED}",
        PRELOAD,
    ),
    Line(
        "tutorial-numpy",
        "The sum of an array and its transpose, with NumPy and Dask",
        f"{DASK_ON_CPUS}...",
        f"hidl run dask-transpose --device cpu --site ri2 --hosts gpu[11-14] {BOUND}",
        HOST_MEMORY,
    ),
    Line(
        "tutorial-pandas",
        "The sums of a data frame's columns, with pandas and Dask",
        f"{DASK_ON_CPUS}...",
        f"hidl run dask-dataframe-sum --device cpu --site ri2 --hosts gpu[11-14] {BOUND}",
        HOST_MEMORY,
    ),
    *(
        Line(
            f"tutorial-latency-to-{target.lower()}",
            f"Latency, from the GPU to the {target}",
            f"mpirun_rsh -np 2 gpu11 gpu12 MV2_USE_CUDA=1 osu_latency -d cuda D {target[0].upper()}",
            f"hidl run osu-latency --site ri2 --hosts gpu11,gpu12 --suite c --set places=D-{target[0].upper()}",
        )
        for target in ("device", "host")
    ),
)
INTRODUCTION = """\
# The MVAPICH tutorial's lines in hidl

The tutorial at the MVAPICH User Group meeting 2022 starts its programs by hand: `mpirun_rsh` with the nodes and all
variables. Here is what a user of hidl types in their place, at the site `ri2`, to which the nodes gpu11 and gpu12
belong. Where a variable comes from is said in the job script (`--dry-run` prints it): presets are what MVAPICH2-GDR's
guides recommend, the site's file knows where GDRCopy is. [Tune MPI](../how-to/tune-mpi.md) says how to change them.

This page is made by the tests, from the scripts of these commands (`tests/plan/test_mvapich_tutorial.py`); no GPU and
no MVAPICH2-GDR has run them. Of the lines for Dask and OMB no more than what is shown is known here. The GPUs of `ri2`
are older than those that the stack `horovod-pytorch-mpi` is compiled for: there, `--env` takes an environment of your
own ([how](../how-to/use-your-own-packages.md)).
"""

BUILDS = (
    "## What is built\n"
    "\n"
    "The tutorial builds two packages by hand before it starts anything. With hidl, `hidl install` does it:\n"
    "\n"
    "| the tutorial | hidl | why |\n"
    "|---|---|---|\n"
    "| `HOROVOD_GPU_ALLREDUCE=MPI HOROVOD_CUDA_HOME=... HOROVOD_WITH_MPI=1 pip install --no-cache-dir horovod`"
    " | `hidl install horovod-pytorch-mpi` | the stack sets `HOROVOD_GPU_OPERATIONS=MPI`, which is allreduce, "
    "allgather and broadcast. Horovod 0.28.1 still reads the old name, for allreduce alone. CUDA's compiler "
    "comes with the stack, and the [patches](../how-to/train-with-horovod.md) for today's PyTorch too |\n"
    "| a section `[MVAPICH2-GDR]` in mpi4py's `mpi.cfg`, then `python setup.py build --mpi=MVAPICH2-GDR` | "
    "nothing | mpi4py's wheel runs on every library with the ABI of MPICH, which MVAPICH2-GDR has: the job "
    "script sets `MPI4PY_MPIABI` and the path of the site's library. For another ABI, `MPICC=/path/to/mpicc "
    "pip install --no-binary mpi4py mpi4py` replaces both steps |\n"
    "| the fork of `distributed` in `mpi4dask-0.2` | `hidl install mpi4dask` | [a "
    "plug-in](../explanation/mpi4dask.md) for the unmodified `distributed` |\n"
)


def script(hidl: Hidl, line: Line) -> str:
    """What hidl would run for the line."""
    done = hidl(*shlex.split(line.ours)[1:], "--prefix", "/apps/hidl", "--dry-run")
    assert done.returncode == 0, done.stderr
    return re.sub(r"\d{8}-\d{6}-[\w-]+-[0-9a-f]{4}\b", "RUN", done.stdout)


def origins(text: str) -> dict[str, tuple[str, str]]:
    """The variables that a script sets, with their values and origins."""
    found = re.findall(r"^export (MV2_\w+)=(\S+) # (.*)$", text, re.MULTILINE)
    return {name: (value, origin) for name, value, origin in found}


def section(line: Line, text: str) -> str:
    """The page's part about a line, from hidl's script for it."""
    rows = [f"| `{name}={value}` | {origin} |" for name, (value, origin) in origins(text).items()]
    rows += [f"| no `{name}` | {reason} |" for name, reason in line.instead.items()]
    return "\n".join(
        [
            f"## {line.title}\n",
            "The tutorial:\n",
            f"```sh\n{_wrapped(line.theirs)}\n```\n",
            "hidl:\n",
            f"```sh\n{_wrapped(line.ours)}\n```\n",
            "| its ranks get | from |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _wrapped(command: str) -> str:
    """The command in lines that a page can show."""
    lines = [""]
    for word in command.split():
        if len(lines[-1]) + len(word) > 110:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_the_script_is_the_golden_one(line: Line, hidl: Hidl) -> None:
    text = script(hidl, line)
    if os.environ.get("HIDL_WRITE_GOLDEN"):
        golden_scripts.write(line.name, text)
    assert text == golden_scripts.read(line.name)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_every_rank_gets_the_variables_of_the_tutorials_line(line: Line) -> None:
    launch = re.findall(r"^launch\w* .*mpirun_rsh.*", golden_scripts.read(line.name), re.MULTILINE)[-1]
    carried = dict(VARIABLE.findall(launch))
    theirs = dict(VARIABLE.findall(line.theirs))
    missing = {name for name, value in theirs.items() if carried.get(name, "").lower() != value.lower()}
    assert missing == set(line.instead)
    assert line.instead.keys() <= {"LD_PRELOAD"}
    assert line.instead != PRELOAD or carried["MV2_SUPPORT_DL"] == "1"
    ranks, buffers = re.search(r"-np (\d+)", line.theirs), re.search(r"-d cuda . .$", line.theirs)
    assert ranks is not None
    assert f"mpirun_rsh -np {ranks[1]} " in launch
    assert buffers is None or launch.endswith(f" {buffers[0]}")


def test_the_page_shows_these_lines() -> None:
    text = "\n".join([INTRODUCTION, *(section(line, golden_scripts.read(line.name)) for line in LINES), BUILDS])
    if os.environ.get("HIDL_WRITE_GOLDEN"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text


def test_the_stack_and_the_scripts_do_what_replaces_the_builds() -> None:
    stack = (REPOSITORY / "recipes" / "stacks" / "horovod-pytorch-mpi.yaml").read_text()
    assert "HOROVOD_GPU_OPERATIONS: MPI" in stack
    for line in LINES:
        if " dask-" in line.ours:
            assert " MPI4PY_MPIABI=mpich " in golden_scripts.read(line.name)
