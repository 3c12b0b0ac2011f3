"""hidl's own packages in Spack are made of the sources beside the repository, named by the number of hidl's wheels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hidl_cli.stack import own_wheel
from tests.conftest import REPOSITORY
from tests.spack.conftest import HIDL_REPOSITORY, module

source_tree = module("source_tree")


@pytest.mark.parametrize("library", own_wheel.libraries())
def test_a_library_has_the_number_and_version_of_its_wheel(library: str) -> None:
    wheel = own_wheel.library(library)
    source = source_tree.OwnSource(f"libs/{library}", version_file=f"{library}/__init__.py")
    assert (source.digest, source.version) == (wheel.digest[:32], wheel.version)


def test_the_workloads_have_the_number_and_version_of_their_wheel() -> None:
    wheel = own_wheel.workloads()
    source = source_tree.OwnSource("hidl_workloads", "__init__.py", beside="../../hidl_workloads")
    assert (source.digest, source.version) == (wheel.digest[:32], wheel.version)


def test_the_workloads_of_an_installed_hidl_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "hidl_cli/_shipped/recipes/spack_repo/hidl"
    shutil.copytree(HIDL_REPOSITORY, repository)
    shutil.copytree(REPOSITORY / "hidl_workloads", tmp_path / "hidl_workloads")
    monkeypatch.setattr(source_tree, "__file__", str(repository / "source_tree.py"))
    source = source_tree.OwnSource("hidl_workloads", "__init__.py", beside="../../hidl_workloads")
    assert source.directory == str(tmp_path / "hidl_workloads")
    assert source.digest == own_wheel.workloads().digest[:32]


def test_without_its_source_a_package_still_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_tree, "__file__", str(tmp_path / "recipes/spack_repo/hidl/source_tree.py"))
    source = source_tree.OwnSource("libs/mpi4dask", "mpi4dask/__init__.py")
    assert (source.digest, source.version) == ("absent", "0")
