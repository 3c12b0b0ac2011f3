"""What the tests of the provider spack share: sites, stacks and places of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.site.schema import Site
from hidl_cli.stack.providers.spack.host import Places
from hidl_cli.stack.schema import Stack
from tests.conftest import PROGRAMS, Hidl


def site(**keys: Any) -> Site:
    """A site of one node type and partition."""
    document: dict[str, Any] = {
        "name": "here",
        "title": "a site",
        "scheduler": "slurm",
        "launchers": ["srun"],
        "node_types": {"node": {"arch": "x86_64", "gpus": 0}},
        "partitions": {"normal": {"node_type": "node", "max_wall": "48:00:00"}},
        "default_partition": "normal",
    }
    return Site.model_validate(document | keys)


def stack(**spack: Any) -> Stack:
    """A stack of MPICH and mpi4py, as Spack builds it."""
    return Stack.model_validate(
        {
            "name": "mpi",
            "title": "a stack",
            "mpi": "mpich",
            "packages": {"mpich": "", "mpi4py": ""},
            "spack": {"specs": ["py-mpi4py"], **spack},
        }
    )


GCC = {"version": "13.3.0", "prefix": "/opt/gcc"}
MPICH = {"family": "mpich", "version": "4.2.0", "prefix": "/opt/mpich"}


@pytest.fixture
def where(tmp_path: Path) -> Places:
    """Places that are named, and not there."""
    return Places(
        root=Path("/shared"), builtin=Path("/builtin"), own=Path("/own"), stage=Path("/stage"), misc=Path("/misc")
    )


@pytest.fixture
def spack(tmp_path: Path) -> Path:
    """The root of what stands at Spack's place."""
    root = tmp_path / "spack"
    (root / "bin").mkdir(parents=True)
    program = (PROGRAMS / "spack_stand_in.py").read_text(encoding="utf-8")
    (root / "bin" / "spack").write_text(f"#!{sys.executable}\n{program}", encoding="utf-8")
    (root / "bin" / "spack").chmod(0o755)
    (root / "lib" / "spack" / "spack").mkdir(parents=True)
    (root / "lib" / "spack" / "spack" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    return root


@pytest.fixture
def real(hidl: Hidl) -> Hidl:
    """hidl with a real Spack, where one is named."""
    root = os.environ.get("HIDL_TEST_SPACK")
    if not root:
        pytest.skip("NOT TESTED: a real Spack; make spack-tests")
    packages = os.environ.get("HIDL_TEST_SPACK_PACKAGES", "")
    python = os.environ.get("SPACK_PYTHON", "")
    return Hidl(hidl.environment | {"HIDL_SPACK": root, "HIDL_SPACK_PACKAGES": packages, "SPACK_PYTHON": python})
