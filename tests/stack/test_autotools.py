"""Programs in C, built by configure and make from an archive that the user has, with the stack's own mpicc."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.stack.conftest import recipe, site

pytestmark = pytest.mark.real

CONFIGURE = """#!/bin/sh
set -e
LIBS=
for word; do case $word in --prefix=*) prefix=${word#*=};; CC=*) CC=${word#*=};; LIBS=*) LIBS=${word#*=};; esac; done
case $PWD in */source/*) ;; *) echo "configure: error: not in the source" >&2; exit 1;; esac
printf 'prefix=%s\\nCC=%s\\nLIBS=%s\\n' "$prefix" "$CC" "$LIBS" | cat - Makefile.in > Makefile
"""
MAKEFILE = """
all: exchange
exchange: exchange.c
\t$(CC) -o exchange exchange.c $(LIBS)
install: all
\tmkdir -p $(DESTDIR)$(prefix)/libexec/tools
\tcp exchange $(DESTDIR)$(prefix)/libexec/tools/exchange
"""
#: Prints what rank 0 gets back from rank 1.
EXCHANGE = """#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, value = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) {
        value = 20;
        MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        printf("%d\\n", value);
    } else {
        MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        value += 1;
        MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
"""


#: Prints what CUDA's driver answers.
DRIVER = """#include <stdio.h>
int cuInit(unsigned int flags);
int main(void) {
    printf("%d\\n", cuInit(0));
    return 0;
}
"""


def archive(
    directory: Path, name: str = "tools-1.0.tar.gz", *, program: str = EXCHANGE, top: str = "tools-1.0"
) -> Path:
    """An archive as such a project publishes it."""
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(directory / name, "w:gz") as tar:
        for file, text in (("configure", CONFIGURE), ("Makefile.in", MAKEFILE), ("exchange.c", program)):
            member = tarfile.TarInfo(f"{top}/{file}")
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    return directory / name


@pytest.fixture
def hidl(hidl: Hidl) -> Hidl:
    """hidl with a stack ``tools`` that builds these programs."""
    build = {
        "name": "tools",
        "version": "1.0",
        "kind": "autotools",
        "source": {"file": "tools-1.0.tar.gz", "any_version": True, "homepage": "https://example.org/tools"},
        "configure": ["CC=mpicc"],
        "link_programs": "libexec/tools",
        "programs": ["cc", "make"],
        "against": ["mpich"],
    }
    recipe(hidl, "tools", extends="mpi", builds=[build])
    return hidl


def test_it_runs_on_the_stacks_mpi_and_is_found_again(hidl: Hidl, root: Path, tmp_path: Path) -> None:
    file = archive(tmp_path / "downloads", "anything.tgz", top="tools-1.2")
    (installed,) = hidl.json("install", "tools", "--source", f"tools={file}")["installations"]
    bin_ = Path(installed["prefix"]) / "bin"

    ran = subprocess.run([bin_ / "mpiexec", "-n", "2", bin_ / "exchange"], capture_output=True, text=True, check=True)
    assert ran.stdout == "21\n"

    (build,) = installed["builds"]
    assert (build["version"], build["source"]["file"]) == ("1.2", "tools-1.2.tar.gz")
    assert build["source"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()

    file.unlink()
    (again,) = hidl.json("install", "tools")["installations"]
    assert (again["action"], again["prefix"]) == ("nothing to do", installed["prefix"])


def test_on_nodes_with_gpus_it_is_linked_with_an_object_that_finds_the_driver_when_it_runs(
    hidl: Hidl, tmp_path: Path
) -> None:
    site(hidl, "workstation", "title: ''\nextends: local\nnode_types: {host: {gpus: 2, gpu_model: NVIDIA A100}}\n")
    added = {"objects": ["cuda_driver.c"], "configure": ["LIBS={tools}/cuda_driver.o -ldl"]}
    variants = {"cuda": {"builds": {"tools": added}}}
    recipe(hidl, "tools-gpu", extends="tools", devices=["cpu", "gpu"], variants=variants)
    file = archive(tmp_path, program=DRIVER)
    assert "undefined reference" in hidl("install", "tools", "--source", f"tools={file}").stderr
    installed = hidl.json("install", "tools-gpu", "--site", "workstation", "--source", f"tools={file}")
    program = Path(installed["installations"][0]["prefix"]) / "bin" / "exchange"

    def answer(**variables: str) -> str:
        return subprocess.run([program], capture_output=True, text=True, check=True, env=variables).stdout

    assert answer() == "100\n"  # CUDA_ERROR_NO_DEVICE
    (tmp_path / "driver.c").write_text("int cuInit(unsigned int flags) { return 40 + (int)flags; }")
    driver = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", driver, tmp_path / "driver.c"], check=True)
    assert answer(LD_LIBRARY_PATH=str(tmp_path)) == "40\n"


def test_without_the_archive_it_reports_what_to_get_from_where_and_how_to_name_it(hidl: Hidl) -> None:
    completed = hidl("install", "tools")
    told = " ".join(completed.stderr.split())
    assert completed.returncode == 4
    assert "source tools-1.0.tar.gz of tools 1.0 not found" in told
    assert "download it from https://example.org/tools and pass --source tools=FILE" in told


def test_the_newest_version_in_the_folder_is_what_would_be_built(hidl: Hidl, root: Path) -> None:
    for version in ("1.9", "1.10", "1.2"):
        archive(root / "sources", f"tools-{version}.tar.gz")
    hidl("stack", "lock", "tools")
    (plan,) = hidl.json("install", "tools", "--dry-run")["plans"]
    assert [build["version"] for build in plan["plan"]["builds"]] == ["1.10"]


def test_the_first_error_of_the_compiler_is_reported_and_nothing_is_published(hidl: Hidl, tmp_path: Path) -> None:
    file = archive(tmp_path, program=EXCHANGE.replace("int rank,", "int ranc,"))
    completed = hidl("install", "tools", "--source", f"tools={file}")
    assert completed.returncode == 5
    assert "failed to build tools 1.0: exchange.c:6:" in " ".join(completed.stderr.split())
    assert hidl("stack", "env", "tools").returncode == 4


@pytest.mark.parametrize("word", ["tools", "tools=", "others=/tmp/file"])
def test_a_source_that_no_stack_builds_is_a_usage_error(hidl: Hidl, word: str) -> None:
    completed = hidl("install", "tools", "--source", word)
    assert (completed.returncode, "known names: tools" in " ".join(completed.stderr.split())) == (2, True)


def test_a_file_that_is_not_there_or_no_archive_is_reported(hidl: Hidl, tmp_path: Path) -> None:
    nowhere, text = tmp_path / "nowhere.tar.gz", tmp_path / "text.tar.gz"
    text.write_text("no archive")
    missing = hidl("install", "tools", "--source", f"tools={nowhere}")
    wrong = hidl("install", "tools", "--source", f"tools={text}")
    assert (missing.returncode, "not found" in missing.stderr) == (4, True)
    assert (wrong.returncode, "is not an archive of tools" in " ".join(wrong.stderr.split())) == (5, True)
