"""The job scripts for real systems: held by golden files, well-formed, and carrying each site's rules.

After a change that is meant: HIDL_WRITE_GOLDEN=1 pytest tests/plan/test_site_scripts.py, and read the difference.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.plan.job_script import job_script
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from tests.conftest import SHELLCHECK
from tests.plan import golden_scripts

GDRCOPY = ["MV2_USE_GDRCOPY=1", "MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so"]
#: What uses GPUs on any node that has some: a check of them, and for studies a program of the user's own.
CHECK = {"workload": "mpi-sanity"}
OWN = {"workload": "", "command": ("python", "train.py"), "directory": "/home/user/project"}
SYSTEMS: dict[str, dict[str, Any]] = {
    "frontera": {"nodes": 64},
    "frontera-rtx": {**CHECK, "nodes": 16, "launcher": "mpirun_rsh", "mpi": "mvapich2-gdr"},
    "frontera-rtx-study": {**OWN, "site": "frontera-rtx", "scale": "1,2,4", "repeat": 2, "tuning": GDRCOPY},
    "summit": {**CHECK, "nodes": 64, "account": "ABC123"},
    "pitzer": {**CHECK, "nodes": 8},
    "pitzer-cpu": {"site": "pitzer", "nodes": 8, "device": "cpu"},
    "stampede2": {"nodes": 64},
    "perlmutter": {**CHECK, "nodes": 64, "account": "m0000_g"},
    "perlmutter-cpu": {"site": "perlmutter", "nodes": 64, "device": "cpu", "account": "m0000"},
    "frontier": {**CHECK, "nodes": 64, "account": "ABC123"},
    "vista": {**CHECK, "nodes": 64},
    "perlmutter-copies": {
        **OWN,
        "site": "perlmutter",
        "scale": "1,2,4",
        "repeat": 2,
        "baseline": "copies",
        "until_settled": True,
    },
    "lassen": {**CHECK, "nodes": 64},
}
TACC = ["frontera", "frontera-rtx", "frontera-rtx-study", "stampede2", "vista"]


def script(system: str) -> str:
    keys = {"site": system, "workload": "resnet50"} | SYSTEMS[system]
    plan = prepare(RunRequest(prefix="/apps/hidl", hypothetical=True, **keys))
    return job_script(replace(plan, run="RUN"))


def commands(text: str) -> str:
    """The script without its comments and conditions, but with what it asks the scheduler for."""
    lines = "\n".join(line for line in text.splitlines() if not re.match(r"\s*#(?!SBATCH|BSUB)", line))
    return re.sub(r"\[\[ .* \]\]", "", lines)


@pytest.fixture(autouse=True)
def no_configuration(config: Path) -> None:
    """Shipped sites alone."""


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_script_is_the_golden_one(system: str) -> None:
    if os.environ.get("HIDL_WRITE_GOLDEN"):
        golden_scripts.write(system, script(system))
    assert script(system) == golden_scripts.read(system)


def test_each_shared_part_stands_once() -> None:
    own = {name: (golden_scripts.DIRECTORY / f"{name}.sh").read_text() for name in golden_scripts.names()}
    for part, text in golden_scripts.parts().items():
        users = [name for name, script in own.items() if f"#@ {part}\n" in script]
        assert len(users) > 1, part
        assert [name for name, script in own.items() if text in script] == [], part


@pytest.mark.parametrize("system", golden_scripts.names())
def test_a_golden_script_is_well_formed(system: str) -> None:
    golden = golden_scripts.read(system)
    assert subprocess.run(["bash", "-n"], input=golden, text=True, check=False).returncode == 0
    checked = subprocess.run([SHELLCHECK, "-"], input=golden, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


@pytest.mark.parametrize("system", TACC)
def test_no_script_for_tacc_names_a_node_or_asks_for_what_tacc_refuses(system: str) -> None:
    refused = r"--nodelist|--exclude|\s-w\s|\s-x\s|--mem\b|--gres|--gpus-per-task|--gpus-per-node|SBATCH --export"
    assert re.findall(refused, commands(script(system))) == []


@pytest.mark.parametrize("system", TACC)
def test_every_script_for_tacc_says_how_many_nodes_for_how_long(system: str) -> None:
    header = [line.split()[1] for line in script(system).splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes", "--time"} <= {word.split("=")[0] for word in header}


@pytest.mark.parametrize("system", ["frontera-rtx", "frontera-rtx-study", "pitzer"])
def test_where_mvapich2_gdr_runs_its_tuning_reaches_every_rank(system: str) -> None:
    (launch, *_) = re.findall(r"^(?:\w+=\S+ )*launch .*mpirun_rsh.*", script(system), re.MULTILINE)
    binding = {"MV2_CPU_BINDING_POLICY=hybrid", "MV2_HYBRID_BINDING_POLICY=spread"}
    assert {"MV2_USE_CUDA=1", "MV2_USE_RDMA_CM=0", *binding} <= set(launch.split())


def test_the_users_own_tuning_comes_with_its_origin() -> None:
    assert f"export {GDRCOPY[1]} # --tune" in script("frontera-rtx-study").splitlines()


@pytest.mark.parametrize("system", ["pitzer-cpu", "perlmutter-cpu"])
def test_a_run_on_processors_has_no_line_about_gpus(system: str) -> None:
    words = commands(script(system)).replace("--gpu_buffers=auto", "")  # a parameter of every training
    lines = [line for line in words.splitlines() if re.search("gpu|cuda", line, re.IGNORECASE)]
    assert lines == []
    assert "export HIDL_DEVICE=cpu" in script(system).splitlines()


@pytest.mark.parametrize("system", ["pitzer", "perlmutter", "summit", "frontier"])
def test_a_run_on_gpus_tells_its_ranks(system: str) -> None:
    assert {"export HIDL_DEVICE=gpu", "export HIDL_GPUS_PER_RANK=1"} <= set(script(system).splitlines())


@pytest.mark.parametrize(("system", "text"), [("summit", "--smpiargs=-gpu"), ("lassen", "--smpiargs=-gpu")])
def test_spectrum_mpi_knows_of_gpus(system: str, text: str) -> None:
    assert text in script(system)


def test_frontier_gives_its_ranks_56_cores_and_cray_mpich_the_gpus() -> None:
    text = script("frontier")
    assert "--ntasks-per-node=8 --cpus-per-task=7" in text
    assert "export MPICH_GPU_SUPPORT_ENABLED=1" in text


def test_perlmutter_is_asked_by_quality_of_service_and_constraint() -> None:
    header = [line for line in script("perlmutter").splitlines() if line.startswith("#SBATCH")]
    assert not any("--partition" in line for line in header)
    assert {"#SBATCH --qos=regular", "#SBATCH --constraint=gpu"} <= set(header)


def test_a_study_takes_place_in_one_allocation_of_its_largest_size() -> None:
    text = script("frontera-rtx-study")
    assert "#SBATCH --nodes=4" in text
    assert len(re.findall(r"^begin_step ", text, re.MULTILINE)) == 6
