"""Send ten messages around a ring and do something else that a recorder has to live with: lives.py WHAT [DIRECTORY]."""

from __future__ import annotations

import mmap
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI
from mpitraffic import phase
from mpitraffic.files import CALL, PAIR

WORLD = MPI.COMM_WORLD
ME, SIZE = WORLD.rank, WORLD.size


def ring(times: int = 10) -> None:
    buffer = np.zeros(100, np.uint8)
    for _ in range(times):
        WORLD.Sendrecv(buffer, (ME + 1) % SIZE, 0, np.zeros(100, np.uint8), (ME - 1) % SIZE)


def killed() -> None:
    """Rank 1 is killed; the other one only ends with the job."""
    ring()
    WORLD.Barrier()
    if ME == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def forks() -> None:
    """A child that goes on after fork, one that starts a program, and a child that leaves by the normal way."""
    ring(5)
    child = os.fork()
    if not child:
        with phase("child"):
            MPI.COMM_SELF.Sendrecv(np.zeros(7, np.uint8), 0, 0, np.zeros(7, np.uint8), 0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    done = subprocess.run([sys.executable, "-c", "print(42)"], capture_output=True, text=True, check=True)
    assert done.stdout == "42\n", done
    assert done.stderr == "", done
    ring(5)


def many() -> None:
    """More records than a small limit has space for: each communicator has its own."""
    comms = [WORLD.Dup() for _ in range(300)]
    for comm in comms:
        for size in (1, 10, 100, 1000):
            comm.Allreduce(np.zeros(size, np.uint8), np.zeros(size, np.uint8))
    total = WORLD.allreduce(ME)
    assert total == SIZE * (SIZE - 1) // 2


def sleeps() -> None:
    """Rank 1 takes a fifth longer for each step."""
    for _ in range(40):
        with phase("step"):
            time.sleep(0.025 if ME == 1 else 0.02)
            WORLD.Allreduce(np.zeros(100), np.zeros(100))


def steps() -> None:
    """Steps with parts; rank 0 waits for the slow rank 1 outside MPI, as for a thread that exchanges data."""
    with phase("warmup"):
        time.sleep(0.3 if ME == 0 else 0)
    WORLD.Barrier()
    for _ in range(10):
        with phase("step"):
            with phase("forward"):
                time.sleep(0.01)
                WORLD.Allreduce(np.zeros(1), np.zeros(1))
            with phase("backward"):
                time.sleep(0.04 if ME == 1 else 0.01)
            with phase("average"):
                time.sleep(0 if ME == 1 else 0.03)
                WORLD.Barrier()


def busy() -> None:
    """Rank 1 is slow in one of two phases only."""
    for _ in range(10):
        with phase("forward"):
            time.sleep(0.02)
        with phase("backward"):
            time.sleep(0.02)
            if ME == 1:
                until = time.perf_counter() + 0.02
                while time.perf_counter() < until:
                    pass
        WORLD.Allreduce(np.zeros(100), np.zeros(100))


def paused() -> None:
    """Calls that are not to be recorded, and phases within each other."""
    MPI.Pcontrol(0)
    ring(7)
    MPI.Pcontrol(1)
    with phase("outer"):
        ring(2)
        with phase("inner"):
            ring(3)
        ring(4)
    ring(1)


def limited() -> None:
    """A limit of the size of files, whose signal ends a program that Python does not protect."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
    many()


def fills() -> None:
    """More events than the disk has space for, and then the program's own result of 8 MB on the same disk."""
    buffer = np.zeros(1, np.uint8)
    for _ in range(80_000):
        WORLD.Send(buffer, MPI.PROC_NULL)
    if ME == 0:
        result = Path(os.environ["MPITRAFFIC_DIRECTORY"]) / "result"
        result.write_bytes(bytes(8 << 20))
        shutil.copyfile(result, Path(sys.argv[2]) / "result")


def billions() -> None:
    """Set the numbers of calls so far to almost 2^31, in the recorder's own memory, and go on."""
    ring()
    (file,) = Path(os.environ["MPITRAFFIC_DIRECTORY"]).glob(f"rank-{ME:06d}-*-{os.getpid()}.mpitraffic")
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as memory:
        (start,) = struct.unpack_from("=I", memory, 8)
        for at in range(start, len(memory), 64):
            if struct.unpack_from("=I", memory, at)[0] in (CALL, PAIR):
                (count,) = struct.unpack_from("=Q", memory, at + 24)
                struct.pack_into("=Q", memory, at + 24, count + 2**31 - 15)
    ring()


{each.__name__: each for each in (killed, forks, many, sleeps, steps, busy, paused, limited, fills, billions)}[
    sys.argv[1]
]()
if len(sys.argv) > 2:
    (Path(sys.argv[2]) / f"done-{ME}").touch()
