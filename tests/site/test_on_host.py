"""A site's compilers, externals and MPI libraries are held against the machine itself."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.site.discovery import check_entries
from hidl_cli.site.probes.host import ThisHost
from tests.stack.spack.conftest import site

VERSION = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
GCC = {"version": VERSION, "prefix": str(Path(shutil.which("gcc") or "").parent.parent)}


@pytest.mark.parametrize(
    ("compiler", "verdict", "said"),
    [
        (GCC, "right", VERSION),
        (GCC | {"version": VERSION.partition(".")[0]}, "right", VERSION),
        (GCC | {"version": "1.2.3"}, "wrong", "but the site file sets 1.2.3"),
        (GCC | {"prefix": "/nowhere"}, "wrong", "/nowhere/bin/gcc not found"),
        ({"version": VERSION, "modules": ["gcc/1"]}, "not checked", "its modules (gcc/1) set the location"),
    ],
)
def test_a_compiler_is_there_and_of_its_version(compiler: dict[str, object], verdict: str, said: str) -> None:
    (found,) = check_entries(site(compilers={"gcc": compiler}), ThisHost())
    assert (found.verdict, said in found.text) == (verdict, True), found.text


@pytest.mark.parametrize(
    ("external", "verdict"),
    [({"prefix": "/nowhere", "version": "1"}, "wrong"), ({"prefix": "/usr", "version": "1"}, "not checked")],
)
def test_an_external_is_where_the_file_says(external: dict[str, str], verdict: str) -> None:
    (found,) = check_entries(site(externals={"zlib": external}), ThisHost())
    assert found.verdict == verdict


def test_an_mpi_library_owns_its_mpicc_and_says_its_version(stack_prefix: Callable[[str], Path]) -> None:
    prefix = stack_prefix("mpi")
    library = {"family": "mpich", "version": "5", "prefix": str(prefix)}
    assert {found.verdict for found in check_entries(site(mpi={"mine": library}), ThisHost())} == {"right"}


def test_another_family_than_the_file_says_is_wrong(stack_prefix: Callable[[str], Path]) -> None:
    library = {"family": "openmpi", "version": "5", "prefix": str(stack_prefix("mpi"))}
    found = check_entries(site(mpi={"mine": library}), ThisHost())
    assert any("contains mpichversion" in one.text and one.verdict == "wrong" for one in found)


def test_a_wrapper_of_another_library_is_wrong(tmp_path: Path, stack_prefix: Callable[[str], Path]) -> None:
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "mpicc"
    wrapper.write_text(f'#!/bin/sh\nexec {stack_prefix("mpi")}/bin/mpicc "$@"\n')
    wrapper.chmod(0o755)
    found = check_entries(site(mpi={"mine": {"family": "mpich", "prefix": str(tmp_path)}}), ThisHost())
    assert any("belongs to another library" in one.text for one in found)
