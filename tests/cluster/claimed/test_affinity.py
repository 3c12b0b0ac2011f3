"""CPU affinity on 56 CPUs that are only claimed: what the kernel answers on a machine that has them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hidl_twin.claimed.build import compile_library

from tests.waiting import patience

TABLE_BYTES = 4 * 2**20
Preloaded = Callable[..., str]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled; its table is the file ``masks`` beside it, which claims 56 CPUs."""
    place = tmp_path_factory.mktemp("claimed")
    (place / "masks").write_bytes((56).to_bytes(4, "little"))
    os.truncate(place / "masks", TABLE_BYTES)
    compile_library(place / "affinity.so", table=str(place / "masks"))
    return place / "affinity.so"


@pytest.fixture
def preloaded(library: Path) -> Preloaded:
    """Runs a Python program with the library; returns what it printed. Its stderr must be empty."""

    def run(program: str, *command: str, **variables: str) -> str:
        completed = subprocess.run(
            [*command, sys.executable, "-c", f"import os, subprocess, sys, threading\n{program}"],
            env={"PATH": os.environ["PATH"], "LD_PRELOAD": str(library)} | variables,
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
        )
        assert (completed.returncode, completed.stderr) == (0, "")
        return completed.stdout.strip()

    return run


def test_a_process_has_every_cpu_until_it_binds_itself(preloaded: Preloaded) -> None:
    assert preloaded("print(os.sched_getaffinity(0) == set(range(56)))") == "True"


def test_a_mask_is_inherited_over_fork_exec_and_by_threads(preloaded: Preloaded) -> None:
    assert (
        preloaded("""
os.sched_setaffinity(0, {5, 28, 55})
child = "import os; print(sorted(os.sched_getaffinity(0)))"
subprocess.run([sys.executable, "-c", child])
thread = threading.Thread(target=lambda: print(sorted(os.sched_getaffinity(0)), flush=True))
thread.start()
thread.join()
""").splitlines()
        == ["[5, 28, 55]"] * 2
    )


def test_threads_have_masks_of_their_own(preloaded: Preloaded) -> None:
    assert (
        preloaded("""
os.sched_setaffinity(0, {1})
thread = threading.Thread(target=lambda: os.sched_setaffinity(0, {2}))
thread.start()
thread.join()
print(os.sched_getaffinity(0))
""")
        == "{1}"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set the timer slack of another process")
def test_another_process_can_be_bound_and_looked_at(preloaded: Preloaded) -> None:
    assert (
        preloaded("""
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
os.sched_setaffinity(child.pid, {7, 40})
print(os.sched_getaffinity(child.pid), len(os.sched_getaffinity(0)))
child.communicate()
""")
        == "{40, 7} 56"
    )


def test_a_process_that_is_not_there_is_esrch(preloaded: Preloaded) -> None:
    assert (
        preloaded("""
child = subprocess.Popen(["true"])
child.wait()
for call in (lambda: os.sched_getaffinity(child.pid), lambda: os.sched_setaffinity(child.pid, {1})):
    try:
        call()
    except ProcessLookupError:
        print("ESRCH")
""").splitlines()
        == ["ESRCH"] * 2
    )


def test_cpus_that_are_not_claimed_are_einval_unless_others_remain(preloaded: Preloaded) -> None:
    assert preloaded("""
try:
    os.sched_setaffinity(0, {56, 100})
except OSError as error:
    print(error.errno)
os.sched_setaffinity(0, {55, 56})
print(os.sched_getaffinity(0))
""").splitlines() == ["22", "{55}"]


def test_a_buffer_smaller_than_the_claimed_cpus_is_einval_and_a_larger_one_is_cleared(preloaded: Preloaded) -> None:
    assert preloaded("""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(b"\\xff" * 128)
print(libc.sched_getaffinity(0, 4, buffer), ctypes.get_errno(), libc.sched_getaffinity(0, 128, buffer))
print(buffer.raw[:128].strip(b"\\0").hex())
""").splitlines() == ["-1 22 0", "ff" * 7]


def test_the_system_calls_made_through_syscall_are_the_same(preloaded: Preloaded) -> None:
    """So LLVM's OpenMP and libnuma make them; the first returns the number of bytes."""
    assert preloaded("""
import ctypes, platform
libc = ctypes.CDLL(None)
set_number, get_number, pid_number = {"x86_64": (203, 204, 39), "aarch64": (122, 123, 172)}[platform.machine()]
mask = ctypes.c_ulong(0b1100)
libc.syscall(set_number, 0, 8, ctypes.byref(mask))
print(os.sched_getaffinity(0), libc.syscall(get_number, 0, 128, ctypes.create_string_buffer(128)))
print(libc.syscall(pid_number) == os.getpid())
""").splitlines() == ["{2, 3} 8", "True"]


def test_a_thread_that_is_created_bound_starts_on_its_cpus(preloaded: Preloaded) -> None:
    """libgomp binds its threads in this way; the attributes stay as they were for the next thread."""
    assert preloaded("""
import ctypes
libc = ctypes.CDLL(None)
attributes, thread, mask = ctypes.create_string_buffer(64), ctypes.c_ulong(), ctypes.c_ulong(1 << 44)
libc.pthread_attr_init(attributes)
print(libc.pthread_attr_setaffinity_np(attributes, 8, ctypes.byref(mask)), flush=True)
@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def start(_):
    print(os.sched_getaffinity(0), flush=True)
for _ in range(2):
    status = libc.pthread_create(ctypes.byref(thread), attributes, start, None)
    print(status, libc.pthread_join(thread, None))
print(len(os.sched_getaffinity(0)))
""").splitlines() == ["0", "{44}", "0 0", "{44}", "0 0", "56"]


def test_masks_of_other_threads_are_reported_by_their_handles(preloaded: Preloaded) -> None:
    assert (
        preloaded("""
import ctypes
libc = ctypes.CDLL(None)
libc.pthread_getaffinity_np.argtypes = [ctypes.c_ulong, ctypes.c_size_t, ctypes.c_void_p]
done = threading.Event()
bound = threading.Event()
def work():
    os.sched_setaffinity(0, {33})
    bound.set()
    done.wait()
thread = threading.Thread(target=work)
thread.start()
bound.wait()
mask = ctypes.c_ulong()
print(libc.pthread_getaffinity_np(thread.ident, 8, ctypes.byref(mask)), mask.value == 1 << 33)
done.set()
""")
        == "0 True"
    )


def test_the_current_cpu_is_one_of_the_mask(preloaded: Preloaded) -> None:
    assert (
        preloaded("""
import ctypes
os.sched_setaffinity(0, {50, 51})
print(ctypes.CDLL(None).sched_getcpu() in (50, 51))
""")
        == "True"
    )


@pytest.mark.parametrize(("given", "seen"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_openmp_waits_passively_unless_it_was_reported_otherwise(
    preloaded: Preloaded, given: dict[str, str], seen: str
) -> None:
    assert preloaded("print(os.environ['OMP_WAIT_POLICY'])", **given) == seen


def test_programs_of_the_system_obey(preloaded: Preloaded) -> None:
    assert preloaded("print(sorted(os.sched_getaffinity(0)))", "taskset", "-c", "27-29") == "[27, 28, 29]"
    assert preloaded("print(subprocess.getoutput('nproc'))", "taskset", "-c", "0-27") == "28"


def test_without_its_table_the_library_changes_nothing(tmp_path: Path, preloaded: Preloaded) -> None:
    compile_library(tmp_path / "affinity.so", table=str(tmp_path / "absent"))
    told = preloaded(
        "print(os.sched_getaffinity(0), 'OMP_WAIT_POLICY' in os.environ)", LD_PRELOAD=str(tmp_path / "affinity.so")
    )
    assert told == f"{os.sched_getaffinity(0)} False"


def test_a_full_table_is_an_error_and_nothing_else(preloaded: Preloaded) -> None:
    """16,383 different masks is more than any node sees; those that are known go on to work."""
    assert preloaded("""
import itertools
masks = itertools.combinations(range(56), 4)
try:
    for mask in itertools.islice(masks, 20000):
        os.sched_setaffinity(0, mask)
except OSError as error:
    print(error.errno)
os.sched_setaffinity(0, {0, 1, 2, 3})
print(os.sched_getaffinity(0))
""").splitlines() == ["12", "{0, 1, 2, 3}"]
