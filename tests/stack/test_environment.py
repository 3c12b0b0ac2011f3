"""Environments of users, read by their own Python: venvs, and a prefix that is laid out as conda's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hidl_cli.errors import InvalidInput, MissingPrecondition
from hidl_cli.stack.activation import UserEnvironment, prepare_support, read
from tests.stack.environments import conda, venv
from tests.stack.wheelhouse import make_wheel


def add(place: Path, name: str, version: str) -> None:
    """Install a small package."""
    wheel = make_wheel(place.parent / "wheels", name, version)
    (site,) = place.glob("lib/python3*/site-packages")
    shutil.unpack_archive(wheel, site, "zip")


def activated(described: UserEnvironment, script: str) -> list[str]:
    """What ``script`` prints in a strict shell in which the environment is activated."""
    prepare_support(described)
    line = f"set -euo pipefail; . {described.support}/activate.sh; echo $-; {script}"
    return subprocess.run(["bash", "-c", line], check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_venv_tells_its_python_and_packages(tmp_path: Path) -> None:
    place = venv(tmp_path / "venv")
    add(place, "Greet_It", "1.0")
    found = read(str(place), tmp_path / "root").described
    assert (found.kind, found.name, found.packages, found.mpi) == ("venv", "env:venv", {"greet-it": "1.0"}, None)
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert not (tmp_path / "root").exists()
    flags, prefix, python = activated(found, "echo $VIRTUAL_ENV; command -v python")
    assert (prefix, python) == (str(place), str(place / "bin" / "python"))
    assert {"e", "u"} <= {*flags}


def test_a_conda_environment_is_activated_with_its_scripts_and_variables(tmp_path: Path) -> None:
    place = conda(tmp_path / "my env")
    add(place, "greet", "1.0")
    found = read(str(place), tmp_path / "root").described
    assert (found.kind, found.packages) == ("conda", {"greet": "1.0", "libgcc-ng": "13.2.0", "mpich": "4.2.3"})
    flags, *values = activated(
        found, 'printf "%s\\n" "$CONDA_PREFIX" "$FROM_SCRIPT" "$FROM_STATE" "${VIRTUAL_ENV-unset}"; command -v python'
    )
    assert values == [str(place), f"in {place}", "a b; $HOME", "unset", str(place / "bin" / "python")]
    assert {"e", "u"} <= {*flags}


def test_a_conda_environment_may_have_an_mpi_library(tmp_path: Path) -> None:
    place = conda(tmp_path / "env")
    assert read(str(place), tmp_path).mpi is None
    (place / "bin" / "mpiexec").write_text("#!/bin/sh\n")
    (place / "bin" / "mpiexec").chmod(0o755)
    (place / "lib" / "libmpi.so.12").touch()
    found = read(str(place), tmp_path)
    assert (found.mpi, found.abi) == (("mpich", "4.2.3"), "mpich")


def test_modules_of_hidl_run_beside_the_environments_own_packages(tmp_path: Path) -> None:
    place = venv(tmp_path / "venv")
    found = read(str(place), tmp_path / "root")
    prepare_support(found.described)
    prepare_support(found.described)
    command = [*found.run_module("hidl_workloads.own_program"), str(tmp_path), "python", "-c"]
    program = "import importlib.util, os; print(os.getcwd(), importlib.util.find_spec('hidl_workloads'))"
    done = subprocess.run(
        [*command, program],
        env={"HIDL_WORLD_SIZE": "1", "PATH": f"{place}/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [str(tmp_path), "None"], done.stderr


def test_what_is_not_an_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingPrecondition, match="bin/python not found"):
        read(str(tmp_path), tmp_path)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(MissingPrecondition, match="does not work: broken"):
        read(str(tmp_path), tmp_path)
    python.write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(MissingPrecondition, match="is not a Python interpreter"):
        read(str(tmp_path), tmp_path)
    python.write_text("""#!/bin/sh\necho '{"version": "3.9.18", "packages": {}, "places": {}}'\n""")
    with pytest.raises(MissingPrecondition, match=r"has Python 3\.9\.18; hidl requires 3\.10"):
        read(str(tmp_path), tmp_path)
    with pytest.raises(InvalidInput, match="the path contains ':'"):
        read(str(tmp_path / "a:b"), tmp_path)
