"""Recorded traffic equals what programs sent, on MPICH and Open MPI, and recording never disturbs a program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from mpitraffic import profile
from mpitraffic.build import build
from mpitraffic.errors import TrafficError
from mpitraffic.files import CHANNELS

from tests.conftest import OPEN_MPI_ON_ONE_HOST
from tests.mpitraffic.conftest import LIBRARY, PROGRAMS

Completed = subprocess.CompletedProcess[str]
STACKS = ("mpi", "openmpi")
PATTERNS = (
    *("ring", "tree", "nonblocking", "boundaries", "persistent", "split", "threads", "collectives", "allreduce"),
    *("averager", "neighbours", "one_sided", "between", "drawn 1", "drawn 2"),
)

pytestmark = pytest.mark.real


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("stack", STACKS)
def test_the_matrix_equals_what_was_sent(
    record: Callable[..., Completed], tmp_path: Path, stack: str, pattern: str
) -> None:
    name, *seed = pattern.split()
    done = record(stack, 4, tmp_path / "profile", "traffic.py", name, str(tmp_path), *seed)
    assert done.returncode == 0, done.stdout + done.stderr
    found = profile.load(tmp_path / "profile")
    for rank in range(4):
        sent = json.loads((tmp_path / f"{rank}.json").read_text())
        for number, channel in enumerate(CHANNELS):
            row = {
                str(target): [int(found.messages[number, rank, target]), int(found.bytes[number, rank, target])]
                for target in range(4)
                if found.messages[number, rank, target]
            }
            assert row == sent[channel], (channel, rank)
    assert not any(found.lost.values())
    received = sum(each.received for each in found.ranks)
    assert received == found.bytes[0].sum() + (8 * 12 * 4 if name == "one_sided" else 0)


def test_the_matrix_of_dask_over_mpi_equals_what_was_received(record: Callable[..., Completed], tmp_path: Path) -> None:
    variables = {"DASK_DISTRIBUTED__COMM__MPI__DIRECT": "off"}  # all bytes by MPI
    done = record("mpi4dask", 2, tmp_path / "profile", "dask_pair.py", **variables)
    assert done.returncode == 0, done.stderr
    found = profile.load(tmp_path / "profile")
    here, there = found.bytes[0][1, 0], found.bytes[0][0, 1]
    # The last envelope of an end that closes may never be received; all else is equal to the byte.
    lost = [here - found.ranks[0].received, there - found.ranks[1].received]
    assert all(0 <= each <= 100 for each in lost), lost
    assert int(done.stdout) <= here < 1.01 * int(done.stdout)
    assert int(done.stdout) > 3 * 21_000_000


@pytest.mark.parametrize("stack", STACKS)
def test_a_killed_rank_leaves_what_it_recorded(record: Callable[..., Completed], tmp_path: Path, stack: str) -> None:
    done = record(stack, 2, tmp_path / "profile", "lives.py", "killed")
    assert done.returncode != 0
    found = profile.load(tmp_path / "profile")
    assert found.bytes[0].tolist() == [[0, 1000], [1000, 0]]
    assert [each.finalized for each in found.ranks] == [False, False]


@pytest.mark.parametrize("stack", STACKS)
def test_a_child_changes_nothing(record: Callable[..., Completed], tmp_path: Path, stack: str) -> None:
    done = record(stack, 2, tmp_path / "profile", "lives.py", "forks", str(tmp_path))
    assert (tmp_path / "done-1").exists(), done.stderr
    found = profile.load(tmp_path / "profile")
    assert found.bytes[0].tolist() == [[0, 1000], [1000, 0]]
    assert list(found.phases) == []
    assert len(list((tmp_path / "profile").iterdir())) == 2


def test_a_limit_bounds_the_file(record: Callable[..., Completed], tmp_path: Path) -> None:
    done = record("mpi", 2, tmp_path / "profile", "lives.py", "many", str(tmp_path), MPITRAFFIC_MEGABYTES="0.05")
    assert done.returncode == 0, done.stderr
    for file in (tmp_path / "profile").iterdir():
        assert file.stat().st_size <= 0.05 * 2**20
    assert profile.load(tmp_path / "profile").lost["records"] > 0


def test_a_limit_of_file_sizes_ends_the_recording_only(record: Callable[..., Completed], tmp_path: Path) -> None:
    done = record("mpi", 2, tmp_path / "profile", "lives.py", "limited", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "cannot write the profile: File too large" in done.stderr
    assert (tmp_path / "done-1").exists()
    assert profile.load(tmp_path / "profile").lost["records"] > 0


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounting a small disk requires root")
@pytest.mark.parametrize("kilobytes", [0, 4, 64])
def test_a_full_disk_ends_the_recording_only(
    recorder: Callable[[str], Path], stack_prefix: Callable[[str], Path], tmp_path: Path, kilobytes: int
) -> None:
    (tmp_path / "profile").mkdir()
    mount = f"mount -t tmpfs -o size={max(kilobytes, 4)}k none {tmp_path / 'profile'}"
    fill = f"dd if=/dev/zero of={tmp_path / 'profile' / 'full'} 2>/dev/null" if not kilobytes else ":"
    done = _shell(f"{mount} && {{ {fill}; true; }} &&", recorder("mpi"), stack_prefix("mpi"), tmp_path, "unshare", "-m")
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stderr
    assert (tmp_path / "done-1").exists()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounting a small disk requires root")
def test_a_recorder_that_fills_a_disk_leaves_space_for_the_result(
    recorder: Callable[[str], Path], stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "profile").mkdir()
    mount = f"mount -t tmpfs -o size=20m none {tmp_path / 'profile'} && MPITRAFFIC_EVENTS=200000"
    front = ("unshare", "-m")
    done = _shell(mount, recorder("mpi"), stack_prefix("mpi"), tmp_path, *front, what="fills")
    assert done.returncode == 0, done.stderr
    assert "cannot write the profile: No space left on device" in done.stderr
    assert (tmp_path / "result").stat().st_size == 8 << 20


@pytest.mark.exact
@pytest.mark.parametrize("stack", STACKS)
def test_counts_beyond_2_31(record: Callable[..., Completed], tmp_path: Path, stack: str) -> None:
    done = record(stack, 2, tmp_path / "profile", "lives.py", "billions")
    assert done.returncode == 0, done.stderr
    found = profile.load(tmp_path / "profile")
    assert found.messages[0].tolist() == [[0, 2**31 + 5], [2**31 + 5, 0]]
    (row,) = (row for key, row in found.calls.items() if "Sendrecv" in key[0])
    assert row.count == 2 * (2**31 + 5)


def _shell(before: str, recorder: Path, prefix: Path, directory: Path, *front: str, what: str = "many") -> Completed:
    program = f"{prefix / 'bin' / 'python'} {PROGRAMS / 'lives.py'} {what} {directory}"
    command = f"{prefix / 'bin' / 'mpiexec'} -n 2 env LD_PRELOAD={recorder} {program}"
    variables = {"PYTHONPATH": str(LIBRARY), "MPITRAFFIC_DIRECTORY": str(directory / "profile")}
    return subprocess.run(
        [*front, "sh", "-c", f"{before} {command}"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_pages_of_64_kilobytes(
    recorder: Callable[[str], Path], stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    """As on some ARM and POWER systems, where offsets of mappings are multiples of 64 KB."""
    prefix, pages = stack_prefix("mpi"), tmp_path / "pages.so"
    source = PROGRAMS / "pages.c"
    subprocess.run([prefix / "bin" / "mpicc", "-shared", "-fPIC", source, "-o", pages, "-ldl"], check=True)
    done = _shell(f"PAGES_OF={recorder('mpi')}", Path(f"{pages}:{recorder('mpi')}"), prefix, tmp_path)
    assert done.returncode == 0, done.stderr
    found = profile.load(tmp_path / "profile")
    assert not any(found.lost.values())
    assert sum(row.count for key, row in found.calls.items() if key[0].startswith("MPI_Allreduce")) == 2400


@pytest.mark.parametrize("stack", STACKS)
def test_phases_and_pauses(record: Callable[..., Completed], tmp_path: Path, stack: str) -> None:
    done = record(stack, 2, tmp_path / "profile", "lives.py", "paused")
    assert done.returncode == 0, done.stderr
    found = profile.load(tmp_path / "profile")
    assert found.bytes[0].tolist() == [[0, 1000], [1000, 0]]
    counts = {key[3]: row.count for key, row in found.calls.items() if "Sendrecv" in key[0]}
    assert counts == {"outer": 12, "inner": 6, "": 2}
    assert [found.phases[name].entries for name in ("outer", "inner")] == [2, 2]
    assert found.phases["outer"].ns >= found.phases["inner"].ns > 0


@pytest.mark.parametrize("stack", STACKS)
def test_a_c_program_with_large_messages_and_numbered_phases(
    recorder: Callable[[str], Path], stack_prefix: Callable[[str], Path], tmp_path: Path, stack: str
) -> None:
    prefix, program = stack_prefix(stack), tmp_path / "large"
    subprocess.run([prefix / "bin" / "mpicc", PROGRAMS / "large.c", "-o", program], check=True)
    done = subprocess.run(
        [prefix / "bin" / "mpiexec", "-n", "2", "env", f"LD_PRELOAD={recorder(stack)}", program],
        env={**os.environ, **OPEN_MPI_ON_ONE_HOST, "MPITRAFFIC_DIRECTORY": str(tmp_path / "profile")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = profile.load(tmp_path / "profile")
    small, each = int(done.stdout.split()[0]), 3 << 30
    assert found.bytes[0].tolist() == [[0, small + each * (1 if stack == "openmpi" else 2)], [0, 0]]
    assert sum(row.bytes for key, row in found.calls.items() if key[3] == "7") == 2 * small
    assert found.phases["7"].entries == 2
    assert {each.received for each in found.ranks} == {0, int(found.bytes[0].sum())}


def _files(prefix: Path, compiler: str, recorder: Path, directory: Path) -> Completed:
    """Run a C program, compiled by the stack's compiler of that name, that uses a file."""
    program = directory / f"files-{compiler}"
    compile_ = [prefix / "bin" / compiler, PROGRAMS / "files.c", "-o", program, f"-Wl,-rpath,{prefix / 'lib'}"]
    subprocess.run(compile_, check=True)
    return subprocess.run(
        [prefix / "bin" / "mpiexec", "-n", "2", "env", f"LD_PRELOAD={recorder}", program, directory / "file"],
        env={**os.environ, **OPEN_MPI_ON_ONE_HOST, "MPITRAFFIC_DIRECTORY": str(directory / "profile")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("stack", "compiler"), [("mpi", "mpicc"), ("openmpi", "mpicc"), ("mpi", "mpicc_abi")])
def test_files_of_mpi_are_counted(
    stack_prefix: Callable[[str], Path], tmp_path: Path, stack: str, compiler: str
) -> None:
    recorder = build(tmp_path / "recorder.so", str(stack_prefix(stack) / "bin" / compiler))
    done = _files(stack_prefix(stack), compiler, recorder, tmp_path)
    assert done.returncode == 0, done.stderr
    found = profile.load(tmp_path / "profile")
    assert found.bytes[0].tolist() == [[0, 100], [100, 0]]
    assert {key[0]: row.bytes for key, row in found.calls.items() if "File" in key[0]} == {
        "MPI_File_write_at_all": 16_000,
        "MPI_File_read_at": 16_000,
    }


@pytest.mark.parametrize(("compiler", "other"), [("mpicc", "mpicc_abi"), ("mpicc_abi", "mpicc")])
def test_a_recorder_for_another_abi_is_an_error(
    stack_prefix: Callable[[str], Path], tmp_path: Path, compiler: str, other: str
) -> None:
    recorder = build(tmp_path / "recorder.so", str(stack_prefix("mpi") / "bin" / other))
    done = _files(stack_prefix("mpi"), compiler, recorder, tmp_path)
    assert done.returncode == 1
    assert "recorder built for another MPI" in done.stderr


def test_a_recorder_for_another_mpi_is_an_error(
    recorder: Callable[[str], Path], run_on_stack: Callable[..., Completed], tmp_path: Path
) -> None:
    done = run_on_stack(
        "openmpi",
        PROGRAMS / "lives.py",
        "paused",
        launch=("mpiexec", "-n", "2", "env", f"LD_PRELOAD={recorder('mpi')}"),
        PYTHONPATH=str(LIBRARY),
        MPITRAFFIC_DIRECTORY=str(tmp_path / "profile"),
    )
    assert done.returncode != 0
    assert "recorder built for another MPI" in done.stderr
    assert "Segmentation fault" not in done.stderr
    assert not (tmp_path / "profile").exists()


def test_a_program_without_mpi_does_not_load_it(recorder: Callable[[str], Path], tmp_path: Path) -> None:
    done = subprocess.run(
        ["grep", "-c", "libmpi[.]", "/proc/self/maps"],
        env={**os.environ, "LD_PRELOAD": str(recorder("mpi")), "MPITRAFFIC_DIRECTORY": str(tmp_path / "profile")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert not (tmp_path / "profile").exists()


def test_a_failed_build_says_why(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="MPI compiler 'no-mpicc' not found"):
        build(tmp_path / "recorder.so", "no-mpicc")
    broken = tmp_path / "mpicc"
    broken.write_text("#!/bin/sh\necho 'mpicc: line 7: cc: command not found' >&2\nexit 127\n")
    broken.chmod(0o755)
    with pytest.raises(TrafficError, match="status 127: mpicc: line 7: cc: command not found"):
        build(tmp_path / "recorder.so", str(broken))
    assert [each.name for each in tmp_path.iterdir()] == ["mpicc"]
