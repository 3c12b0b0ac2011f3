"""The check of MPI's world in an image: which library it loads, and that an unknown one fails it.

The libraries are stand-ins, compiled here, whose world has the size ``$STAND_IN_SIZE``. Real ones are used in
tests/runs/test_container_on_a_cluster.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads import container_world
from tests.waiting import patience

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

LIBRARY = """
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int MPI_Init(void *a, void *b) { return 0; }
int MPI_Finalize(void) { return 0; }
int MPI_Comm_set_errhandler(int world, int handler) { return 0; }
int MPI_Comm_rank(int world, int *rank) {
    char *text = getenv("STAND_IN_RANK");
    *rank = text ? atoi(text) : 0;
    return 0;
}
int MPI_Allgather(void *own, int length, int kind, char *every) {
    int size = atoi(getenv("STAND_IN_SIZE")), rank;
    MPI_Comm_rank(0, &rank);
    for (int other = 0; other < size; other++)
        if (other == rank || getenv("STAND_IN_STATUS"))
            memcpy(every + other * length, own, length);
    return 0;
}
int MPI_Sendrecv(void *sent, int count, int kind, int destination) {
    fprintf(stderr, "%d bytes to rank %d\\n", count, destination);
    if (!strcmp(getenv("STAND_IN_STATUS"), "never"))
        sleep(3600);
    return atoi(getenv("STAND_IN_STATUS"));
}
int MPI_Comm_size(int world, int *size) { *size = atoi(getenv("STAND_IN_SIZE")); return 0; }
int MPI_Get_library_version(char *text, int *length) { *length = sprintf(text, "stand-in %s", NAME); return 0; }
"""
PROGRAM = "int MPI_Init(void *, void *); int main(void) { return MPI_Init(0, 0); }"
START = Path(__file__).parents[2] / "hidl_workloads" / "start.py"


def library(directory: Path, name: str) -> Path:
    """Compile a library that names itself by its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    words = ["-shared", "-fPIC", f'-DNAME="{directory.name}"', f"-Wl,-soname,{name}", "-x", "c", "-"]
    subprocess.run(["cc", "-o", directory / name, *words], input=LIBRARY, text=True, check=True)
    return directory / name


def program(directory: Path, *words: str | Path) -> Path:
    """Compile a program."""
    file = directory / "program"
    subprocess.run(["cc", "-o", file, "-x", "c", "-", "-x", "none", *words], input=PROGRAM, text=True, check=True)
    return file


def check(
    *command: str | Path, places: tuple[Path, ...] = (), size: int = 2, start: Path = START, **more: str
) -> tuple[int, str]:
    """Return the exit status and the messages of the check of a run with two ranks."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HIDL_WORLD_SIZE": "2",
        "STAND_IN_SIZE": str(size),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, places)),
        **more,
    }
    done = subprocess.run(
        [sys.executable, start, "hidl_workloads.container_world", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_the_library_is_the_one_that_the_program_is_linked_to(tmp_path: Path) -> None:
    """It is found through RPATH, and another one on the linker's path does not count."""
    own = library(tmp_path / "own", "libmpi.so.40")
    library(tmp_path / "other", "libmpi.so.12")
    linked = program(tmp_path, own, f"-Wl,-rpath,{own.parent}")

    assert check(linked, places=(tmp_path / "other",)) == (0, "")
    status, said = check(linked, places=(tmp_path / "other",), size=1)
    assert status == 86
    assert "MPI in the image has 1 rank(s), expected 2 (stand-in own)" in said


def test_ranks_on_a_node_must_exchange_a_long_message(tmp_path: Path) -> None:
    places = (library(tmp_path / "only", "libmpi.so.12").parent,)
    rank = {"STAND_IN_RANK": "1"}

    assert check("true", places=places, STAND_IN_STATUS="0", **rank) == (0, "1048576 bytes to rank 0\n")
    status, said = check("true", places=places, STAND_IN_STATUS="15", **rank)
    assert status == 86
    assert "cannot exchange a message of 1 MiB in the image: MPI_Sendrecv returned 15" in said
    assert check("true", places=places, **rank) == (0, "")  # the other rank is on another node


def test_an_exchange_that_never_ends_ends_the_check(tmp_path: Path) -> None:
    place = library(tmp_path / "only", "libmpi.so.12").parent
    text = (
        "import sys; from hidl_workloads import container_world as world; world._EXCHANGE_SECONDS = 0.5; "
        "sys.exit(world.main(['true']))"
    )
    environment = {"HIDL_WORLD_SIZE": "2", "STAND_IN_SIZE": "2", "STAND_IN_STATUS": "never"}
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(place), **environment},
        cwd=START.parents[1],
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert done.returncode == 86, done.stderr
    assert "cannot exchange a message of 1 MiB in the image: not finished after 0.5 s" in done.stderr


@given(nodes=st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=9))
def test_each_rank_receives_from_the_one_that_sends_to_it(nodes: list[bytes]) -> None:
    found = [container_world._neighbors(nodes, rank) for rank in range(len(nodes))]
    for rank, each in enumerate(found):
        others = [other for other, node in enumerate(nodes) if node == nodes[rank] and other != rank]
        assert (each is None) == (not others)
        if each is not None:
            assert set(each) <= set(others)
            assert found[each[0]] is not None
            assert found[each[0]][1] == rank


@pytest.mark.real
@pytest.mark.parametrize("command", ["true", "{python} x.py"])
def test_ranks_that_are_not_in_blocks_exchange_it_too(
    command: str, stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    """Two nodes with two ranks each, and the variables of ranks that are dealt out in turn."""
    prefix = stack_prefix("mpi")
    rank = (
        'export RANK=$PMI_RANK LOCAL_RANK=$((PMI_RANK / 2)) LOCAL_WORLD_SIZE=2 NODE_RANK=$((PMI_RANK % 2)); exec "$@"'
    )
    words = ["sh", "-c", rank, "sh", prefix / "bin" / "python", START, "hidl_workloads.container_world"]
    words += command.format(python=prefix / "bin" / "python").split()
    done = subprocess.run(
        [prefix / "bin" / "mpiexec", "-n", "4", *words],
        env={
            "PATH": "/usr/bin:/bin",
            "LD_LIBRARY_PATH": str(prefix / "lib"),
            "HIDL_WORLD_SIZE": "4",
            "HIDL_METRICS": str(tmp_path / "metrics.json"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(100),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_program_that_needs_an_absent_library_fails(tmp_path: Path) -> None:
    own = library(tmp_path / "own", "libmpi.so.12")
    linked = program(tmp_path, own)

    status, said = check(linked)
    assert (status, "requires an MPI library that the image lacks" in said) == (86, True), said


def test_an_image_in_which_no_library_is_found_fails(tmp_path: Path) -> None:
    library(tmp_path / "hidden", "libmpi.so.12")
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    for command in (["true"], [script], [sys.executable, "x.py"], ["absent"]):
        status, said = check(*command)
        assert (status, "no MPI library found in the image" in said, "--no-mpi" in said) == (86, True, True), said


def test_the_first_rank_that_fails_says_why(tmp_path: Path) -> None:
    """The others wait, because a launcher ends all ranks when one has failed."""
    beside = {"HIDL_METRICS": str(tmp_path / "metrics.json")}
    assert "no MPI library found" in check("true", RANK="1", **beside)[1]
    assert check("true", RANK="0", **beside) == (86, "")


def test_the_only_library_on_the_linkers_path_counts(tmp_path: Path) -> None:
    place = library(tmp_path / "only", "libmpi.so.12").parent
    shutil.copy(place / "libmpi.so.12", place / "libmpich.so.12")
    (place / "libmpi.so").write_text("INPUT(libmpi.so.12)\n")  # for the linker of a compiler

    assert check("true", places=(place,)) == (0, "")
    assert check("true", places=(place,), size=1)[0] == 86


def test_several_libraries_fail_unless_one_is_mounted(tmp_path: Path) -> None:
    first, second = library(tmp_path / "a" / "lib", "libmpi.so.12"), library(tmp_path / "b", "libmpi.so.40")
    places = (first.parent, second.parent)

    status, said = check("true", places=places)
    assert (status, f"several MPI libraries ({first}, {second})" in said) == (86, True), said
    mounted = f"{first.parents[1]}/lib64:{first.parent}"
    assert check("true", places=places, HIDL_MOUNTED_MPI=mounted) == (0, "")


def test_a_mounted_library_must_be_the_one_that_the_program_loads(tmp_path: Path) -> None:
    own = library(tmp_path / "image", "libmpi.so.12")
    mounted = library(tmp_path / "mounted" / "lib", "libmpi.so.12")
    linked, where = program(tmp_path, own, f"-Wl,-rpath,{own.parent}"), {"HIDL_MOUNTED_MPI": str(mounted.parent)}

    for command in (linked, "true"):
        status, said = check(command, places=(own.parent,), **where)
        assert (status, f"loads {own} of the image instead of the mounted" in said) == (86, True), said
        assert str(mounted.parent) in said
    assert check("true", places=(mounted.parent, own.parent), **where) == (0, "")
    linked = program(tmp_path, own)
    assert check(linked, places=(mounted.parent, own.parent), **where) == (0, "")

    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    (tmp_path / "mpi4py" / "MPI.py").write_text(
        "import ctypes\nctypes.CDLL('libmpi.so.12')\n"
        "class COMM_WORLD:\n    Get_size = staticmethod(lambda: 2)\n    Get_rank = staticmethod(lambda: 0)\n"
        "    allgather = staticmethod(lambda node: [node, b'another'])\n"
        "class Exception(Exception): pass\n"
        "def Get_library_version(): return 'that of mpi4py'\n"
    )
    options = {**where, "PYTHONPATH": str(tmp_path)}
    assert check(sys.executable, "x.py", places=(mounted.parent,), **options) == (0, "")
    status, said = check(sys.executable, "x.py", places=(own.parent,), **options)
    assert (status, f"loads {own} of the image" in said) == (86, True), said


def test_a_mounted_library_without_its_dependencies_says_what_to_mount(tmp_path: Path) -> None:
    (tmp_path / "libmpi.so.12").write_bytes(b"no library")
    status, said = check("true", places=(tmp_path,), HIDL_MOUNTED_MPI=str(tmp_path))
    assert (status, "libraries that it requires with --mount" in said, "--no-mpi" in said) == (86, True, False), said


@pytest.mark.parametrize("fault", ["damaged", "unreadable dependency"])
def test_a_library_that_exists_but_cannot_be_loaded_fails(fault: str, tmp_path: Path) -> None:
    if fault == "damaged":
        (tmp_path / "libmpi.so.12").write_bytes(b"no library")
    else:
        needed = library(tmp_path / "needed", "libneeded.so")
        words = ["-shared", "-fPIC", "-Wl,--no-as-needed", needed, "-x", "c", "-"]
        subprocess.run(["cc", "-o", tmp_path / "libmpi.so.12", *words], input="int x;", text=True, check=True)
        needed.unlink()

    status, said = check("true", places=(tmp_path,))
    assert (status, "cannot be loaded" in said) == (86, True), said


def test_a_static_program_fails(tmp_path: Path) -> None:
    place = library(tmp_path / "only", "libmpi.so.12").parent
    file = tmp_path / "static"
    words = ["cc", "-static", "-nostdlib", "-o", file, "-x", "c", "-"]
    subprocess.run(words, input="void _start(void) { for (;;); }", text=True, check=True)

    status, said = check(file, places=(place,))
    assert (status, "linked statically" in said) == (86, True), said


def test_an_mpi4py_beside_hidls_package_is_not_the_programs(tmp_path: Path) -> None:
    """A stack's site-packages contain both, and a runtime may mount all of them."""
    package = tmp_path / "stack" / "hidl_workloads"
    shutil.copytree(START.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "stack" / "mpi4py").mkdir()
    (tmp_path / "stack" / "mpi4py" / "__init__.py").write_text("raise RuntimeError('of the stack')\n")

    status, said = check(sys.executable, "x.py", start=package / "start.py")
    assert (status, "no MPI library found in the image" in said) == (86, True), said


@pytest.mark.parametrize("start", ["#!{python}", "#!/usr/bin/env -S python3"])
def test_a_python_program_is_checked_with_its_own_mpi4py(start: str, tmp_path: Path) -> None:
    """mpi4py is a stand-in that finds one rank; the library on the linker's path has two."""
    place = library(tmp_path / "only", "libmpi.so.12").parent
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    (tmp_path / "mpi4py" / "MPI.py").write_text(
        "class COMM_WORLD:\n    Get_size = staticmethod(lambda: 1)\n"
        "def Get_library_version(): return 'that of mpi4py\\nx'\n"
    )
    script = tmp_path / "train.py"
    script.write_text(start.format(python=sys.executable) + "\n")
    script.chmod(0o755)

    for command in ([sys.executable, "train.py"], [script]):
        status, said = check(*command, places=(place,), PYTHONPATH=str(tmp_path))
        assert (status, "has 1 rank(s), expected 2 (that of mpi4py)" in said) == (86, True), said
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    status, said = check(script, places=(place,), PYTHONPATH=str(tmp_path))
    assert (status, "mpi4py in the image cannot be loaded: cannot load MPI library" in said) == (86, True), said
