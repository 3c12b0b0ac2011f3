"""``hidl run --container`` with Charliecloud on a real Slurm: program and check of the world run in the image."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.launch.images import PYTHON, make_image
from tests.runs.test_on_a_cluster import add_site

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        shutil.which("ch-run") is None, reason="Charliecloud is not installed (apt install charliecloud)"
    ),
    pytest.mark.skipif(not PYTHON.exists() or not Path("/bin").is_symlink(), reason="no Python in a merged /usr"),
]

#: Counts the ranks with the MPI library of the image, and prints what is visible there.
COUNT = """
import ctypes, json, os, pathlib
mpi = ctypes.CDLL("libmpi.so.12")
size = ctypes.c_int()
mpi.MPI_Init(None, None)
mpi.MPI_Comm_size(ctypes.c_int(0x44000000), ctypes.byref(size))
mpi.MPI_Finalize()
loaded = next(line.split()[-1] for line in open("/proc/self/maps") if "libmpi.so" in line)
image = pathlib.Path("/etc/in-the-image").exists()
text = json.dumps([int(os.environ["RANK"]), size.value, image, loaded, os.getcwd(), os.path.exists("/mnt/given")])
os.write(1, text.encode() + bytes([10]))
"""
SIZE = ("--nodes", "2", "--ranks-per-node", "2")


def printed(hidl: Hidl) -> list[list[object]]:
    """The lines of all ranks of the last run, by rank."""
    run = max(hidl.runs.iterdir())
    return sorted(json.loads(line) for line in (run / "stdout.log").read_text().splitlines())


def test_ranks_on_two_nodes_are_one_world_in_the_image(
    on_cluster: Callable[..., Hidl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidl = on_cluster("mpi")
    (installed,) = hidl.json("install", "mpi", "--site", "test-cluster")["installations"]
    prefix = Path(installed["prefix"])
    mpi = {"wrong": {"family": "mpich", "prefix": str(prefix), "srun_mpi": "none"}}
    add_site(hidl, {"name": "test-cluster", "extends": "test-cluster", "mpi": mpi})
    image = make_image(tmp_path / "image", libraries=[*prefix.glob("lib/libmpi.so*"), prefix / "lib" / "mpich"])
    (tmp_path / "work").mkdir()
    (tmp_path / "given" / "given").mkdir(parents=True)
    (tmp_path / "work" / "count.py").write_text(COUNT)
    monkeypatch.chdir(tmp_path / "work")
    options = ("run", "--site", "test-cluster", *SIZE, "--container", str(image))
    program = ("--", "python3", "count.py")
    here = str(tmp_path / "work")

    own = hidl(*options, "--mount", f"{tmp_path}/given:/mnt", *program)
    assert own.returncode == 0, own.stderr
    assert [rank[:3] + rank[4:] for rank in printed(hidl)] == [[rank, 4, True, here, True] for rank in range(4)]
    assert {str(rank[3]).startswith("/usr/lib/") for rank in printed(hidl)} == {True}

    (run,) = hidl.runs.iterdir()
    capsule = hidl("capsule", run.name)
    assert (capsule.returncode, "used the image" in capsule.stderr) == (4, True), capsule.stderr

    mounted = hidl(*options, "--mpi", "stack", *program)
    assert mounted.returncode == 0, mounted.stderr
    assert [rank[1] for rank in printed(hidl)] == [4] * 4
    assert {str(rank[3]).startswith(str(prefix)) for rank in printed(hidl)} == {True}

    wrong = hidl(*options, "--mpi", "wrong", *program)
    assert wrong.returncode == 8, wrong.stderr
    assert "MPI in the image has 1 rank(s), expected 4" in wrong.stderr
    assert printed(hidl) == []
