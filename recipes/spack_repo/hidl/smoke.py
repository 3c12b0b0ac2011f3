"""Ranks on this machine, for the stand-alone tests of packages (``spack test run``)."""

import os

from spack.package import SkipTest, which, working_dir

#: Every rank computes one sum over all ranks.
_PROGRAM = """
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, size, sum;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks, sum %d\\n", size, sum);
    MPI_Finalize();
    return 0;
}
"""


def run_ranks(mpi, *command, number=2):
    """Run the command on ``number`` ranks with the ``mpiexec`` of the spec ``mpi``, and return what it printed.

    ``SkipTest`` is raised where that library has none that starts ranks here.
    """
    launcher = which("mpiexec", path=mpi.prefix.bin)
    if launcher is None:
        raise SkipTest(f"{mpi.name} has no mpiexec: its ranks start in an allocation only")
    if mpi.name == "openmpi":
        launcher.add_default_arg("--oversubscribe")
        if os.getuid() == 0:
            launcher.add_default_arg("--allow-run-as-root")
    return launcher("-n", str(number), *command, output=str.split, error=str.split)


def compiled_program(package, directory):
    """Compile ``_PROGRAM`` with the ``mpicc`` of ``package`` in ``directory``, and return the program's path."""
    with working_dir(directory, create=True):
        with open("sum.c", "w", encoding="utf-8") as file:
            file.write(_PROGRAM)
        mpicc = which(package.prefix.bin.mpicc, required=True)
        mpicc("sum.c", "-o", "sum")
        return os.path.abspath("sum")
