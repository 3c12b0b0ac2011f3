"""Ranks and sizes as launchers set them."""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType

import pytest

from tests.conftest import REPOSITORY

LAUNCHERS = {
    "Hydra": {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_RANK": "3",
    },
    "mpirun_rsh": {
        "MV2_COMM_WORLD_RANK": "3",
        "MV2_COMM_WORLD_SIZE": "8",
        "MV2_COMM_WORLD_LOCAL_RANK": "1",
        "MV2_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "jsrun": {
        "JSM_NAMESPACE_RANK": "3",
        "JSM_NAMESPACE_SIZE": "8",
        "JSM_NAMESPACE_LOCAL_RANK": "1",
        "JSM_NAMESPACE_LOCAL_SIZE": "2",
    },
    "srun with PMIx": {"PMIX_RANK": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"},
    "srun with PMI2": {"PMI_RANK": "3", "PMI_SIZE": "8", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"},
    "mpiexec within a step": {
        "PMI_RANK": "3",
        "PMI_SIZE": "8",
        "MPI_LOCALRANKID": "1",
        "PMIX_RANK": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_LOCALID": "0",
    },
}


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, which needs neither torch nor MPI, in an empty environment."""
    for name in list(os.environ):
        if name.startswith(("PMI", "MPI_LOCAL", "SLURM_", "OMPI_", "TORCH", "RANK", "WORLD", "LOCAL_")):
            monkeypatch.delenv(name)
    file = REPOSITORY / "libs" / "mpi4c10d" / "mpi4c10d" / "launcher.py"
    spec = importlib.util.spec_from_file_location("mpi4c10d_launcher", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", LAUNCHERS)
def test_ranks_follow_the_launcher(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(variable, "")  # restored afterwards
        monkeypatch.delenv(variable)
    for variable, value in LAUNCHERS[name].items():
        monkeypatch.setenv(variable, value)
    launcher.export()
    assert [os.environ[variable] for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == ["3", "8", "1"]


def test_a_batch_script_is_no_rank(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm sets these in the script itself, which no MPI launcher started."""
    for variable, value in {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}.items():
        monkeypatch.setenv(variable, value)
    assert launcher.world() is None


def test_torchrun_within_a_rank_is_no_torchrun(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert launcher.under_torchrun()
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert not launcher.under_torchrun()
