"""What the tests of ``hidl validate`` share: a workload of known pace, and the user's own checks of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROGRAMS, Hidl

SITE = ("--site", "test-cluster")
PACED: dict[str, Any] = {
    "parameters": {
        "slow_rank": {"type": "int", "default": -1},
        "slow": {"type": "float", "default": 0},
        "hang": {"type": "bool", "default": False},
        "silent": {"type": "bool", "default": False},
    },
    "metrics": {"rate": {"unit": "1/s", "better": "higher"}},
    "scaling": {"metric": "rate", "kind": "weak", "target": 0.7},
}
CHECKS = """
import reframe as rfm
from hidl_checks import Run, Study
from reframe.core.builtins import parameter


class Paced(Study):
    workload = "paced"
    scale = parameter(["1-node", "4-nodes"])
    repeat = 4


@rfm.simple_test
class paced(Paced):
    tags = {"nightly"}


@rfm.simple_test
class slowed(Paced):
    assignments = ["slow_rank=1", "slow=0.2"]


@rfm.simple_test
class once(Paced):
    repeat = 1


@rfm.simple_test
class disturbed(Study):
    workload = "spins"
    scale = parameter(["1-node"])
    repeat = 4


class Alone(Run):
    workload = "paced"
    scale = parameter(["1-rank"])


@rfm.simple_test
class silent(Alone):
    assignments = ["silent=true"]


@rfm.simple_test
class hanging(Alone):
    assignments = ["hang=true"]


@rfm.simple_test
class broken(Alone):
    workload = "broken"
"""


def with_checks(hidl: Hidl) -> Hidl:
    """hidl with the workloads ``paced``, ``spins`` and ``broken`` and the checks above, where users keep theirs."""
    hidl.add_workload("paced", "paced.py", **PACED)
    hidl.add_workload("spins", "spins.py", metrics=PACED["metrics"], scaling=PACED["scaling"])
    command = ["python", str(PROGRAMS / "fails.py"), "module"]
    hidl.add_workload("broken", "fails.py", metrics=PACED["metrics"], program={"command": command})
    file = hidl.config / "reframe_checks" / "paced.py"
    file.parent.mkdir(parents=True)
    file.write_text(CHECKS)
    return hidl


def cases(document: Any) -> dict[str, Any]:
    """The cases of ``hidl validate --json`` by name."""
    return {case["name"]: case for case in document["cases"]}


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl on this machine, with stack mpi."""
    return with_checks(hidl_with("mpi"))


@pytest.fixture
def ordered(on_cluster: Callable[..., Hidl]) -> Callable[..., Hidl]:
    """``ordered("mpi")``: hidl on the cluster, these stacks installed; ``launchers``: the site's, in order.

    The cluster's Slurm binds no ranks to cores, and Hydra does: so mpiexec comes first.
    """

    def with_stacks(*stacks: str, launchers: str = "[mpiexec, srun]") -> Hidl:
        ready = on_cluster(*stacks)
        file: Path = ready.config / "sites" / "test-cluster.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"name: test-cluster\nextends: test-cluster\nlaunchers: {launchers}\n")
        return ready

    return with_stacks
