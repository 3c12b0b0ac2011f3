"""A program under test: ignores every signal that can be ignored, and goes on."""

import signal
import time

from mpi4py import MPI

for deaf_to in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(deaf_to, signal.SIG_IGN)
print(f"rank {MPI.COMM_WORLD.rank} here", flush=True)
time.sleep(120)
