"""The midpoint rule for pi, as in mpi4py's demo/compute-pi: each rank sums every size-th interval."""

import argparse

from mpi4py import MPI

parser = argparse.ArgumentParser(description="Compute pi on all ranks.")
parser.add_argument("--intervals", type=int, default=100000, help="number of intervals")
n = parser.parse_args().intervals
world = MPI.COMM_WORLD
part = sum(4 / (1 + ((i + 0.5) / n) ** 2) for i in range(world.rank, n, world.size)) / n
pi = world.reduce(part)
if world.rank == 0:
    print(f"pi is {pi:.6f} on {world.size} ranks")
