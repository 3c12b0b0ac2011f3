"""``hidl run --container`` with Charliecloud on this machine: two ranks in real containers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import Hidl
from tests.launch.images import PYTHON, make_image
from tests.waiting import patience

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        shutil.which("ch-run") is None, reason="Charliecloud is not installed (apt install charliecloud)"
    ),
    pytest.mark.skipif(not PYTHON.exists() or not Path("/bin").is_symlink(), reason="no Python in a merged /usr"),
]

#: Two ranks exchange a message of 8 MiB with the MPI library of the image.
EXCHANGE = """
import ctypes
mpi = ctypes.CDLL("libmpi.so.12")
world, byte, status = ctypes.c_int(0x44000000), ctypes.c_int(0x4c00010d), ctypes.c_void_p(1)
rank = ctypes.c_int()
mpi.MPI_Init(None, None)
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
sent, received = ctypes.create_string_buffer(b"x" * (8 << 20)), ctypes.create_string_buffer(8 << 20)
other, none = ctypes.c_int(1 - rank.value), ctypes.c_int(0)
mpi.MPI_Sendrecv(sent, 8 << 20, byte, other, none, received, 8 << 20, byte, other, none, world, status)
mpi.MPI_Finalize()
print(received.raw.count(b"x"))
"""


@pytest.fixture
def here(
    hidl_with: Callable[..., Hidl], stack_prefix: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Hidl, Path]]:
    """``here(**site)``: hidl with such a site ``local``, and the path of an image with MPI; in directory work."""

    def prepare(**site: object) -> tuple[Hidl, Path]:
        hidl, prefix = hidl_with("mpi"), stack_prefix("mpi")
        image = make_image(tmp_path / "image", libraries=[*prefix.glob("lib/libmpi.so*"), prefix / "lib" / "mpich"])
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")
        file = hidl.config / "sites" / "local.yaml"
        file.parent.mkdir(parents=True)
        document = {"name": "local", "extends": "local", "containers": {"runtime": "charliecloud"}}
        file.write_text(yaml.safe_dump(document | site))
        return hidl, image

    return prepare


def run(hidl: Hidl, image: Path, *words: str, rc: int = 0) -> tuple[list[str], str]:
    """Run a program on two ranks in the image, and return the lines that it has printed, and hidl's messages."""
    done = hidl("run", "--ranks-per-node", "2", "--container", str(image), *words)
    assert done.returncode == rc, done.stderr
    return (max(hidl.runs.iterdir()) / "stdout.log").read_text().splitlines(), done.stderr


def test_ranks_on_a_node_exchange_long_messages(here: Callable[..., tuple[Hidl, Path]]) -> None:
    """Each rank has a user namespace of its own unless the containers are joined, and MPI cannot copy its memory."""
    hidl, image = here()
    Path("exchange.py").write_text(EXCHANGE)
    printed, said = run(hidl, image, "--", "python3", "exchange.py")
    assert printed == [str(8 << 20)] * 2
    assert "UCX ERROR" not in said

    # The first rank's program ends at once: without waiting, others could not join its container.
    printed, _ = run(hidl, image, "--repeat", "5", "--", "python3", "-c", "print(1)")
    assert [line for line in printed if not line.startswith("#")] == ["1"] * 10
    assert [*Path("/dev/shm").glob("ch-run_shm-hidl-*")] == []


def test_a_job_starts_where_starts_of_an_earlier_job_of_its_run_were_killed(
    here: Callable[..., tuple[Hidl, Path]], tmp_path: Path
) -> None:
    """The memory of killed starts stays on the node, and the job of the same run is started there again."""
    hidl, image = here()
    real = str(shutil.which("ch-run"))
    (tmp_path / "bin").mkdir()
    log = tmp_path / "tags"
    (tmp_path / "bin" / "ch-run").write_text(
        f'#!/bin/sh\nfor word; do case $word in --join-tag=*) echo "$word" >> {log};; esac; done\nexec {real} "$@"\n'
    )
    (tmp_path / "bin" / "ch-run").chmod(0o755)
    hidl.environment["PATH"] = f"{tmp_path / 'bin'}:{hidl.environment['PATH']}"
    printed, _ = run(hidl, image, "--", "python3", "-c", "print(1)")
    assert printed == ["1"] * 2
    tags = sorted(set(log.read_text().splitlines()))
    assert len(tags) == 2  # of the check and of the program

    environment = {**hidl.environment, "USER": "root"}
    for tag in tags:  # the other rank never comes
        words = [real, "--join", "--join-ct=2", tag, str(image), "--", "sh", "-c", ":"]
        subprocess.run(words, env=environment, check=True)
        assert Path(f"/dev/shm/ch-run_shm-{tag.partition('=')[2]}").exists()
    try:
        (directory,) = hidl.runs.iterdir()
        again = subprocess.run(
            ["bash", "job.sh"],
            cwd=directory,
            env=hidl.environment,
            capture_output=True,
            text=True,
            timeout=patience(120),
            check=False,
        )
        assert again.returncode == 0, again.stderr + (directory / "stderr.log").read_text()
        assert (directory / "stdout.log").read_text() == "1\n" * 2
    finally:
        for tag in tags:
            for kind in ("ch-run_shm-", "sem.ch-run_sem-"):
                Path(f"/dev/shm/{kind}{tag.partition('=')[2]}").unlink(missing_ok=True)


def test_a_mounted_library_that_the_program_does_not_load_is_an_error(
    here: Callable[..., tuple[Hidl, Path]], stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    prefix = tmp_path / "ghost"
    hidl, image = here(mpi={"ghost": {"family": "mpich", "prefix": str(prefix)}})
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib" / "release").mkdir(parents=True)  # where the dynamic linker does not look
    for library in (image / "usr" / "lib").glob("libmpi.so*"):
        shutil.copy(library, prefix / "lib" / "release")
    for name in ("mpiexec*", "hydra*"):
        for file in (stack_prefix("mpi") / "bin").glob(name):
            shutil.copy(file, prefix / "bin")
    printed, said = run(hidl, image, "--mpi", "ghost", "--", "python3", "-c", "print(1)", rc=8)
    assert printed == []
    assert "of the image instead of the mounted MPI library" in said
    assert f"{prefix}/lib" in said


def test_given_variables_replace_those_of_the_image(here: Callable[..., tuple[Hidl, Path]]) -> None:
    hidl, image = here()
    (image / "ch").mkdir()
    (image / "ch" / "environment").write_text("OF_USER=image\nRANK=7\nNCCL_DEBUG=VERSION\nOF_IMAGE=image\n")
    show = "import os; print([os.environ.get(name) for name in ('OF_USER', 'RANK', 'NCCL_DEBUG', 'OF_IMAGE')])"
    options = ("--no-mpi", "--env-var", "OF_USER=a $b 'c'", "--env-var", "NCCL_DEBUG=INFO")
    printed, _ = run(hidl, image, *options, "--", "python3", "-c", show)
    assert sorted(printed) == [str(["a $b 'c'", rank, "INFO", "image"]) for rank in ("0", "1")]
