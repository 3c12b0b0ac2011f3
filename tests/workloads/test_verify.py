"""The verification of an installed stack, on real ranks; each check is shown to fail where it must."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hidl_cli import process
from tests.tiers import deep
from tests.workloads import ranks

VERIFY = ("-m", "hidl_workloads.verify")


@dataclass(frozen=True)
class Verification:
    """How it ended, and its checks by name."""

    status: int
    checks: dict[str, dict[str, Any]]

    @property
    def failed(self) -> set[str]:
        return {name for name, check in self.checks.items() if not check["ok"]}


@pytest.fixture
def verify(stack_prefix: Callable[[str], Path], tmp_path: Path) -> Callable[..., Verification]:
    def run(stack: str, imports: str = "", **variables: str) -> Verification:
        report = tmp_path / "report.json"
        words = (*VERIFY, "--imports", imports, "--report", report)
        completed = ranks.run(stack_prefix(stack), 2, *words, **variables)
        document = json.loads(report.read_text())
        assert document["schema"] == "hidl.verification/1"
        return Verification(completed.status, {check["name"]: check for check in document["checks"]})

    return run


def test_a_good_stack_passes_every_check(verify: Callable[..., Verification]) -> None:
    verification = verify("mpi", "numpy")
    assert (verification.status, verification.failed) == (0, set())
    assert list(verification.checks) == [
        "world size",
        "import numpy",
        "allreduce",
        "one MPI library",
        "MPI library inside the prefix",
    ]


@pytest.mark.parametrize(("stack", "module"), [("pytorch", "torch"), deep("tensorflow", "tensorflow")])
def test_a_framework_imports_beside_mpi_and_reports_its_version(
    verify: Callable[..., Verification], stack: str, module: str
) -> None:
    verification = verify(stack, module)
    assert verification.status == 0
    assert verification.checks[f"import {module}"]["detail"].startswith("2.")


def test_a_second_mpi_library_in_the_process_fails(
    verify: Callable[..., Verification], stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    second = tmp_path / "libmpi.so.12"
    shutil.copy(stack_prefix("mpi") / "lib" / "libmpi.so.12", second)
    verification = verify("mpi", "second_libmpi", SECOND_LIBMPI=str(second))
    assert verification.status == 1
    assert verification.failed == {"one MPI library", "MPI library inside the prefix"}
    assert str(second) in verification.checks["one MPI library"]["detail"]


def test_a_second_mpi_library_under_a_wheels_mangled_name_fails(
    verify: Callable[..., Verification], stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    second = tmp_path / "libmpi-1a2b3c4d.so.12.5.2"
    shutil.copy(stack_prefix("mpi") / "lib" / "libmpi.so.12", second)
    verification = verify("mpi", "second_libmpi", SECOND_LIBMPI=str(second))
    assert "one MPI library" in verification.failed


def test_a_module_that_fails_on_one_rank_fails_for_all_and_names_the_rank(
    verify: Callable[..., Verification],
) -> None:
    verification = verify("mpi", "fails_to_import")
    assert (verification.status, verification.failed) == (1, {"import fails_to_import"})
    detail = verification.checks["import fails_to_import"]["detail"]
    assert detail == "rank 1: ImportError: libsomething.so.7: cannot open shared object file"


def test_a_wrong_world_fails(verify: Callable[..., Verification]) -> None:
    verification = verify("mpi", HIDL_WORLD_SIZE="4")
    assert (verification.status, verification.failed) == (1, {"world size"})


def test_singletons_fail(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    command = [stack_prefix("mpi") / "bin" / "python", *VERIFY, "--report", tmp_path / "report.json"]
    completed = process.run(command, env=ranks.python_environment() | {"HIDL_WORLD_SIZE": "2"}, check=False)
    assert completed.status == 1
