"""Which GPUs kernels serve, and what is said of the frameworks in a process."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest

from hidl_workloads import kernels
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("architectures", "gpu", "expected"),
    [
        (["sm_80"], "sm_80", True),
        (["sm_80"], "sm_86", True),
        (["sm_86"], "sm_80", False),
        (["sm_80"], "sm_90", False),
        (["sm_80", "compute_90"], "sm_120", True),
        (["compute_90"], "sm_80", False),
        (["sm_90a"], "sm_90", True),
        (["sm_100a"], "sm_103", False),
        (["sm_90"], "gfx90a", False),
        (["gfx90a", "gfx942"], "gfx90a", True),
    ],
)
def test_kernels_serve_their_major_version_and_ptx_all_later_ones(
    architectures: list[str], gpu: str, expected: bool
) -> None:
    assert kernels.serves(architectures, gpu) == expected


def imported_torch(monkeypatch: pytest.MonkeyPatch, flags: str, cuda: str | None) -> None:
    """A torch that has these kernels."""
    library = SimpleNamespace(_cuda_getArchFlags=lambda: flags)
    version = SimpleNamespace(cuda=cuda, hip=None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=library, __version__="2.10.0", version=version))


def test_gpus_without_kernels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    imported_torch(monkeypatch, "sm_75 sm_80 sm_90", "13.0")
    found = kernels.check(["sm_80", "sm_70", "sm_60"])
    assert (found.ok, found.detail) == (
        False,
        "torch 2.10.0 has none for sm_70, sm_60 (torch 2.10.0: sm_75 sm_80 sm_90)",
    )


def test_what_has_not_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    imported_torch(monkeypatch, "sm_70 sm_75", "12.8")
    found = kernels.check(["sm_70"])
    assert found.ok
    assert found.detail == "for sm_70 (torch 2.10.0: sm_70 sm_75); not run, because that requires a job with GPUs"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (["sm_75", "sm_70"], "sm_70 sm_75, as in the table of wheels)"),
        (["sm_70", "sm_80"], "sm_70 sm_75, unlike the table of wheels, which has sm_70 sm_80)"),
        (None, "sm_70 sm_75)"),
    ],
)
def test_kernels_are_compared_with_the_table_of_wheels(
    monkeypatch: pytest.MonkeyPatch, table: list[str] | None, said: str
) -> None:
    imported_torch(monkeypatch, "sm_70 sm_75", "12.8")
    expected = {"tensorflow": ["sm_90"], **({"torch": table} if table else {})}
    found = kernels.check(["sm_70"], expected)
    assert found.ok
    assert said in found.detail


def test_the_nightly_looks_for_what_is_said_of_other_kernels() -> None:
    searched = re.search(r'! grep "([^"]+)" .*verification\.json', (REPOSITORY / "Makefile").read_text())
    assert searched is not None
    assert kernels.DIFFERS.startswith(searched[1])


def test_builds_for_processors_have_nothing_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    imported_torch(monkeypatch, "", None)
    assert kernels.check(["sm_70"]).detail.startswith("not checked")
