"""Rules about a program of the user's own, on real files."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.doctor.rules.own_program import RULES, OwnProgram, imports_of, probe
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.site.probes.host import ThisHost
from tests.doctor.cases import Case, has_both_ways, named, severity
from tests.doctor.machines import context, host, installed, slurm

GOOD = OwnProgram("./pi", "/home/me", exists=True, is_executable=True, linked="mpich", abi="mpich", family="mpich")

CASES: list[Case] = [
    ("HD011", "of Open MPI on MPICH", replace(GOOD, linked="openmpi"), "error"),
    ("HD011", "of a derivative", GOOD, None),
    ("HD011", "linked to none", replace(GOOD, linked=None), None),
    ("HD012", "no such script", replace(GOOD, file="train.py", exists=False), "error"),
    ("HD012", "no such program", replace(GOOD, file="prog", exists=False), "error"),
    ("HD012", "beside, not on PATH", replace(GOOD, file="pi", exists=False, in_directory=True), "error"),
    ("HD012", "modules may bring it", replace(GOOD, file="pi", exists=None), None),
    ("HD012", "there", GOOD, None),
    ("HD014", "a stack has it", replace(GOOD, stack="mpi", missing_packages=(("torch", "pytorch"),)), "error"),
    (
        "HD014",
        "no stack has it",
        replace(GOOD, stack="mpi", missing_packages=(("torch", "pytorch"), ("x", None))),
        "error",
    ),
    ("HD014", "all there", GOOD, None),
    ("HD013", "without permission", replace(GOOD, is_executable=False), "error"),
    ("HD013", "source code", replace(GOOD, file="./pi.c", is_executable=False), "error"),
    ("HD013", "a script without #!", replace(GOOD, file="./train.py", missing_interpreter=""), "error"),
    ("HD013", "a script of an unknown interpreter", replace(GOOD, missing_interpreter="/usr/bin/pyhton"), "error"),
    ("HD013", "a script from Windows", replace(GOOD, missing_interpreter="/bin/sh\r"), "error"),
    ("HD013", "a script", replace(GOOD, is_executable=None), None),
    ("HD016", "on two nodes", replace(GOOD, nodes=2, uses_gloo=True), "info"),
    ("HD016", "on one node", replace(GOOD, uses_gloo=True), None),
    ("HD016", "another backend", replace(GOOD, nodes=2), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rule(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(RULES, id, facts) == expected


def test_every_rule_has_positive_and_negative_cases() -> None:
    assert has_both_ways(RULES, CASES)


def probed(directory: Path, *command: str) -> OwnProgram:
    """The facts about a program that starts in ``directory``, on this host."""
    plan = prepare(RunRequest(command=command, directory=str(directory), site="local", hypothetical=True))
    return probe(context(host(None, "awk"), installation=installed(Path("/stacks/mpi/1")), plan=plan))


def test_a_program_on_path_is_there(tmp_path: Path) -> None:
    assert probed(tmp_path, "awk", "{print $1}").exists is True


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('dist.init_process_group("gloo")', True),
        ('def main():\n    torch.distributed.init_process_group(backend="gloo", rank=0)', True),
        ('from torch.distributed import init_process_group\ninit_process_group("gloo")', True),
        ('dist.init_process_group("mpi")', False),
        ("dist.init_process_group(backend)", False),
        ('print("gloo")', False),
        ("this is no Python", False),
    ],
)
def test_programs_that_choose_gloo_are_found(tmp_path: Path, line: str, expected: bool) -> None:
    (tmp_path / "train.py").write_text(line)
    assert probed(tmp_path, "python", "train.py").uses_gloo is expected
    assert probed(tmp_path, "torchrun", "train.py").uses_gloo is expected


@pytest.mark.parametrize("words", [["python", "train.py"], ["bash", "train.py", "-x"], ["python3.11", "./train.py"]])
def test_the_script_of_an_interpreter_is_looked_for(tmp_path: Path, words: list[str]) -> None:
    assert probed(tmp_path, *words).exists is False
    (tmp_path / "train.py").touch()
    assert probed(tmp_path, *words).exists is True
    assert probed(tmp_path, *words).is_executable is None


def test_packages_that_the_stack_lacks_are_named(
    tmp_path: Path, stack_prefix: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = stack_prefix("mpi").parents[2]
    strangers = tmp_path / "strangers"
    strangers.mkdir()
    (strangers / "importlib.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')")
    monkeypatch.chdir(strangers)
    (tmp_path / "helper.py").touch()
    (tmp_path / "train.py").write_text(
        "import os, numpy.linalg, helper\nimport torch.nn as nn\nfrom mpi4py import MPI\nfrom . import x\n"
        "try:\n    import wandb\nexcept ImportError:\n    pass\ndef f():\n    import pandas\n"
    )
    request = RunRequest(command=["python", "train.py"], directory=str(tmp_path), site="local", prefix=str(root))
    facts = probe(context(ThisHost(), installation=installed(stack_prefix("mpi")), plan=prepare(request)))
    assert facts.missing_packages == (("torch", "pytorch"),)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "text",
    ["import sys\nsys.path.append('lib')\nimport mine\n", "import (", "\0", "x" * 2**20 + "\nimport y", "((" * 9999],
)
def test_a_script_whose_imports_are_unknown_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert imports_of(tmp_path / "train.py") == ()


def test_a_program_of_the_directory_needs_its_path(tmp_path: Path) -> None:
    (tmp_path / "pi").touch()
    assert (probed(tmp_path, "pi").exists, probed(tmp_path, "pi").in_directory) == (False, True)


@pytest.mark.parametrize("directory", [".", ".."])
def test_a_directory_is_not_a_program_of_the_stack(tmp_path: Path, directory: str) -> None:
    assert probed(tmp_path, directory).exists is False


def test_a_file_must_be_executable(tmp_path: Path) -> None:
    file = tmp_path / "pi"
    file.touch()
    assert probed(tmp_path, "./pi").is_executable is False
    file.chmod(0o755)
    assert probed(tmp_path, "./pi").is_executable is True


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        (b"import torch\n", ""),
        (b"#!/bin/sh\n", None),
        (b"#! /bin/sh -e\n", None),
        (b"#!/usr/bin/env awk\n", None),
        (b"#!/usr/bin/env -S LC_ALL=C awk -f\n", None),
        (b"#!/usr/bin/env pyhton\n", "pyhton"),
        (b"#!/no/such/python -u\n", "/no/such/python"),
        (b"#!/bin/sh\r\necho\r\n", "/bin/sh\r"),
        (b"#!/usr/bin/env awk\r\n", "awk\r"),
        (b"", None),
        (Path("/bin/true").read_bytes(), None),
        (b"\x00asm\x01\x00\x00\x00", None),
    ],
)
def test_the_interpreter_of_a_script_is_looked_for(tmp_path: Path, content: bytes, missing: str | None) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(content)
    assert probed(tmp_path, "./train.py").missing_interpreter is None
    file.chmod(0o755)
    assert probed(tmp_path, "./train.py").missing_interpreter == missing


@pytest.mark.parametrize(
    "soname", ["libmpi.so.40", "libmpi_mpifh.so.40", "libmpi_usempif08-gfortran.so.40", "libmpi_cxx.so.40"]
)
def test_the_mpi_library_of_a_compiled_program_is_known(tmp_path: Path, soname: str) -> None:
    library = tmp_path / soname
    link = ["gcc", "-x", "c", "-o"]
    subprocess.run([*link, library, "-shared", f"-Wl,-soname,{soname}", "/dev/null"], check=True)
    (tmp_path / "pi.c").write_text("int main(void) { return 0; }\n")
    subprocess.run([*link, tmp_path / "pi", tmp_path / "pi.c", "-Wl,--no-as-needed", "-x", "none", library], check=True)
    assert (probed(tmp_path, "./pi").linked, probed(tmp_path, "./pi").abi) == ("openmpi", "mpich")
    shutil.copy("/bin/true", tmp_path / "alone")
    assert probed(tmp_path, "./alone").linked is None


def test_the_files_of_another_machine_are_not_looked_for(tmp_path: Path) -> None:
    plan = prepare(RunRequest(command=["./pi"], directory=str(tmp_path), site="local", hypothetical=True))
    assert probe(context(host(), slurm(), plan=plan)) == OwnProgram()
