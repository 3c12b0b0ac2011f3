"""The activation script and the modulefile, also where the prefix holds what shells and Tcl would obey."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.quoting import tcl
from tests.conftest import Hidl

pytestmark = pytest.mark.real

HOSTILE = "a b'c\"d`id`;e&f[g]{h}\\i#j~*é"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / HOSTILE


@pytest.fixture
def installed(hidl: Hidl, hostile: Path) -> dict[str, str]:
    (found,) = hidl.json("install", "mpi", "--prefix", str(hostile))["installations"]
    return found  # type: ignore[no-any-return]


def shell(script: str, *arguments: str, **environment: str) -> list[str]:
    done = subprocess.run(
        ["sh", "-c", script, "sh", *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_script_activates_it(installed: dict[str, str]) -> None:
    shown = 'printf "%s\\n" "$VIRTUAL_ENV" "$HIDL_STACK" "${PYTHONPATH-unset}"'
    script = f'. "$1"; command -v python; command -v mpiexec; {shown}'
    prefix = installed["prefix"]
    path = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/other"}
    lines = shell(script, installed["activation"], **path)
    assert lines == [f"{prefix}/bin/python", f"{prefix}/bin/mpiexec", prefix, "mpi", "unset"]
    assert shell('. "$1"; printf "%s\\n" "$PATH"', installed["activation"], **path) == [f"{prefix}/bin:/usr/bin:/bin"]


def test_stack_env_prints_the_same(installed: dict[str, str], hidl: Hidl, hostile: Path) -> None:
    shown = hidl("stack", "env", "mpi", "--prefix", str(hostile))
    assert shown.stdout == Path(installed["activation"]).read_text()
    assert shell('eval "$1"; printf "%s\\n" "$VIRTUAL_ENV"', shown.stdout, PATH="/usr/bin:/bin") == [
        installed["prefix"]
    ]
    document = hidl.json("stack", "env", "mpi", "--prefix", str(hostile))
    assert document["prepend"] == {"PATH": f"{installed['prefix']}/bin"}


def test_stack_exec_runs_in_it_and_gives_its_status(installed: dict[str, str], hidl: Hidl, hostile: Path) -> None:
    inside = ("stack", "exec", "mpi", "--prefix", str(hostile), "--")
    done = hidl(
        *inside, "python", "-c", "import sys; print(sys.prefix, sys.argv[1:]); sys.exit(7)", "--json", "$x y", "--"
    )
    assert (done.returncode, done.stdout) == (7, f"{installed['prefix']} ['--json', '$x y', '--']\n")
    assert hidl(*inside, "mpiexec", "-n", "2", "python", "-c", "from mpi4py import MPI").returncode == 0
    assert hidl(*inside, "no-such-program").returncode == 2


@pytest.mark.skipif(shutil.which("tclsh") is None, reason="there is no tclsh")
def test_the_modulefile_is_tcl_that_sets_the_same(installed: dict[str, str]) -> None:
    commands = "\n".join(
        f"proc {name} {{args}} {{ puts [join [linsert $args 0 {name}] \\n] }}"
        for name in ("module-whatis", "setenv", "unsetenv", "prepend-path")
    )
    script = f"encoding system utf-8\n{commands}\nsource -encoding utf-8 [lindex $argv 0]\nModulesHelp\n"
    done = subprocess.run(
        ["tclsh", "/dev/stdin", installed["modulefile"]],
        input=script,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    prefix = installed["prefix"]
    assert lines[lines.index("setenv") : lines.index("setenv") + 3] == ["setenv", "VIRTUAL_ENV", prefix]
    assert lines[-3:] == ["prepend-path", "PATH", f"{prefix}/bin"]
    assert prefix in done.stderr


def test_a_word_of_tcl_holds_no_control_character() -> None:
    with pytest.raises(InvalidInput):
        tcl("a\nb")
    assert tcl("") == "{}"
