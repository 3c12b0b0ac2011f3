/* Call MPI through the recorder (MPI_) and past it (PMPI_), in turn on the same two ranks: mpiexec -n 2 recorded BLOCKS
 *
 * Prints, for each kind of call, the microseconds of a call past the recorder and through it: the low deciles of the
 * blocks, because another program that takes the core lengthens some of them.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { CALLS = 500, REDUCED = 1024 };
static char bytes[8], others[8];
static float in[REDUCED], out[REDUCED];
static int rank;

static void to_nobody(int recorded)
{
    if (recorded)
        MPI_Send(bytes, 8, MPI_CHAR, MPI_PROC_NULL, 1, MPI_COMM_WORLD);
    else
        PMPI_Send(bytes, 8, MPI_CHAR, MPI_PROC_NULL, 1, MPI_COMM_WORLD);
}

static void ping_pong(int recorded)
{
    int (*send)(const void *, int, MPI_Datatype, int, int, MPI_Comm) = recorded ? MPI_Send : PMPI_Send;
    int (*receive)(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *) = recorded ? MPI_Recv : PMPI_Recv;

    if (rank == 0) {
        send(bytes, 8, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
        receive(others, 8, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        receive(others, 8, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        send(bytes, 8, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
    }
}

static void allreduce(int recorded)
{
    if (recorded)
        MPI_Allreduce(in, out, REDUCED, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
        PMPI_Allreduce(in, out, REDUCED, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int by_size(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static void measure(const char *name, void (*call)(int), int blocks)
{
    double *times[2] = {malloc(sizeof(double) * blocks), malloc(sizeof(double) * blocks)};

    for (int block = -2; block < blocks; block++)
        for (int recorded = 0; recorded < 2; recorded++) {
            PMPI_Barrier(MPI_COMM_WORLD);
            double before = PMPI_Wtime();
            for (int i = 0; i < CALLS; i++)
                call(recorded);
            if (block >= 0)
                times[recorded][block] = (PMPI_Wtime() - before) * 1e6 / CALLS;
        }
    for (int recorded = 0; recorded < 2; recorded++)
        qsort(times[recorded], blocks, sizeof(double), by_size);
    if (rank == 0)
        printf("%s %.4f %.4f\n", name, times[0][blocks / 10], times[1][blocks / 10]);
    free(times[0]);
    free(times[1]);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int blocks = argc > 1 ? atoi(argv[1]) : 200;
    measure("to_nobody", to_nobody, blocks);
    measure("ping_pong", ping_pong, blocks);
    measure("allreduce", allreduce, blocks);
    MPI_Finalize();
    return 0;
}
