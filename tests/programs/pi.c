/* The midpoint rule for pi, as in MPICH's examples/cpi.c. Its argument: the number of intervals. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    long n = argc > 1 ? atol(argv[1]) : 10000000, i;
    int rank, size;
    double sum = 0, pi = 0, x;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (i = rank; i < n; i += size) {
        x = (i + 0.5) / n;
        sum += 4.0 / (1.0 + x * x);
    }
    sum /= n;
    MPI_Reduce(&sum, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("pi is %.6f on %d ranks\n", pi, size);
    MPI_Finalize();
    return 0;
}
