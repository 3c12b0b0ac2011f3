"""Modules of the site file: a job whose modules were not loaded fails by name, whatever ``module load`` returns."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.templates import render_script
from tests.conftest import Hidl
from tests.site.module_tree import LMOD, needs_lmod

#: A module command as that of Environment Modules 3.2: it prints its errors, ``eval`` of nothing returns 0.
C_MODULES = r"""
module() { eval "$(modulecmd "$@")"; }
modulecmd() {
    local name=$2 file
    [[ $1 == load || $1 == show ]] || { echo "ModuleCmd: unrecognized subcommand '$1'" >&2; return 1; }
    case $name in
        foo | foo/default) name=foo/1.2 ;;
        virtual) name=foo/1.4 ;;
        mpi/foo) name=mpi/foo/1 ;;
    esac
    [[ $name == /* ]] && file=$name || file=/sw/modulefiles/$name
    if [[ $1 == show ]]; then
        echo "$file:" >&2
        return
    fi
    case $name in
        foo/1.3)
            echo "ERROR:150: Module 'foo/1.3' conflicts with the currently loaded module(s) 'foo/1.2'" >&2
            return 1 ;;
        foo/* | bar | .hid/1 | mpi/foo/1 | /home/me/mine)
            [[ :$LOADEDMODULES: == *:$name:* ]] ||
                echo "export LOADEDMODULES=${LOADEDMODULES:+$LOADEDMODULES:}$name;" \
                    "export _LMFILES_=${_LMFILES_:+$_LMFILES_:}$file;" ;;
        several) echo "export LOADEDMODULES=${LOADEDMODULES:+$LOADEDMODULES:}foo/1.2:bar" ;;
        *) echo "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for '$name'" >&2; return 1 ;;
    esac
}
export LOADEDMODULES=
"""
#: One that keeps no list.
PLAIN = 'module() { case $2 in foo) export PATH=/foo:$PATH ;; *) echo "no $2" >&2 ;; esac; }\nunset LOADEDMODULES\n'


def loads(shell: str, *modules: str) -> subprocess.CompletedProcess[str]:
    """The lines of a job script that load these modules."""
    lines = "".join(f"set +u; load_module '{each}'; set -u\n" for each in modules)
    script = f"set -euo pipefail\nset +u\n{shell}\nset -u\n{render_script('load_module.sh.j2', {})}\n{lines}echo all\n"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "modules",
    [
        ("foo",),
        ("foo/1.2",),
        ("foo/",),
        ("foo/default",),
        ("foo", "foo/default"),
        ("foo", "foo", "bar"),
        ("virtual",),
        ("virtual", "virtual"),
        ("several",),
        (".hid/1",),
        ("mpi/foo",),
        ("/home/me/mine", "/home/me/mine"),
    ],
    ids=" ".join,
)
def test_c_modules_that_are_loaded_pass(modules: tuple[str, ...]) -> None:
    done = loads(C_MODULES, *modules)
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (("nosuch/1",), "Unable to locate a modulefile for 'nosuch/1'"),
        (("fo",), "Unable to locate a modulefile for 'fo'"),
        (("foo/1.2", "foo/1.3"), "conflicts with the currently loaded module(s) 'foo/1.2'"),
        (("bar", "ba*"), "Unable to locate"),
    ],
)
def test_c_modules_that_are_not_loaded_are_named(modules: tuple[str, ...], said: str) -> None:
    done = loads(C_MODULES, *modules)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert f"hidl: module {modules[-1]} of the site file cannot be loaded on {os.uname().nodename}" in done.stderr


def test_a_command_that_keeps_no_list_is_judged_by_the_environment() -> None:
    assert loads(PLAIN, "foo").returncode == 0
    done = loads(PLAIN, "bar")
    assert (done.returncode, "hidl: module bar" in done.stderr) == (1, True)


def test_a_status_of_the_command_stays() -> None:
    assert loads("module() { return 3; }", "foo").returncode == 3
    done = loads("unset -f module", "foo")
    assert done.returncode == 127
    assert "module: command not found" in done.stderr


@pytest.fixture
def lmod(tmp_path: Path) -> str:
    """Lmod with a tree that has defaults, hidden modules, a meta module, an alias and a conflict."""
    tree = tmp_path / "modulefiles"
    texts = {
        "foo/1.2.lua": 'setenv("FOO", "1.2")\n',
        "foo/1.3.lua": 'setenv("FOO", "1.3")\n',
        "bar/.1.lua": 'setenv("BAR", "1")\n',
        "meta.lua": 'load("foo/1.2", "mpi/one/2")\n',
        "mpi/one/2.lua": 'setenv("ONE", "2")\n',
        "needs.lua": 'prereq("nothing")\n',
        "alone.lua": 'conflict("foo")\n',
        "broken.lua": 'setenv("X"\n',
        ".modulerc.lua": 'module_version("foo/1.2", "stable")\nmodule_alias("likefoo", "foo/1.3")\n',
    }
    for name, text in texts.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    return f"export LMOD_PAGER=none MODULEPATH={tree} LOADEDMODULES=\nsource {LMOD}\n"


@needs_lmod
@pytest.mark.parametrize(
    "modules",
    [
        ("foo",),
        ("foo/stable", "foo/stable"),
        ("likefoo", "likefoo"),
        ("foo/1.2", "foo/1.3"),
        ("bar/.1",),
        ("meta", "foo", "mpi/one"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("returns", ["as it is", "0"])
def test_modules_of_lmod_that_are_loaded_pass(lmod: str, modules: tuple[str, ...], returns: str) -> None:
    done = loads(lmod + (ALWAYS_0 if returns == "0" else ""), *modules)
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr


#: Lmod as its users wrap it.
ALWAYS_0 = 'eval "lmod_$(declare -f module)"\nmodule() { lmod_module "$@" || true; }\n'


@needs_lmod
@pytest.mark.parametrize("modules", [("nosuch",), ("needs",), ("foo", "alone"), ("broken",)], ids=" ".join)
@pytest.mark.parametrize("returns", ["as it is", "0"])
def test_modules_of_lmod_that_are_not_loaded_are_named(lmod: str, modules: tuple[str, ...], returns: str) -> None:
    done = loads(lmod + (ALWAYS_0 if returns == "0" else ""), *modules)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"hidl: module {modules[-1]} of the site file cannot be loaded" in done.stderr


@pytest.mark.real
def test_a_run_without_its_module_fails_by_name(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    """The function comes with the environment, as that of Environment Modules 3.2 does."""
    hidl = hidl_with("mpi")
    file = hidl.config / "sites" / "local.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: local\nextends: local\npolicies: {modules: [foo, gcc/9.9]}\n")
    script = tmp_path / "init.sh"
    script.write_text(C_MODULES + "export -f module modulecmd\n")
    command = ["bash", "-c", 'source "$0" && exec "$@"', str(script)]
    line = [*command, *hidl.command("run", "--no-mpi", "--", "env")]
    done = subprocess.run(line, env=hidl.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 8, done.stderr
    assert "Unable to locate a modulefile for 'gcc/9.9'" in done.stderr
    assert "HD093" in done.stderr
    (run,) = hidl.runs.iterdir()
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_status"], status["step"]) == ("FAILED", 1, 0)
    assert not (run / "steps").exists()
