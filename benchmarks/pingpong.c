/* The ping-pong of osu_latency, and nothing else: what MPI itself takes one way, in microseconds.
 *
 * As a program:  mpiexec -n 2 pingpong SIZE ITERATIONS WARMUP single|multiple   prints one number; the last word is the
 * thread level. As a library (-shared) it measures in a process whose MPI is initialised already.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 64, LINES = 4096 };
static struct {
    size_t next;
    char rest[LINE - sizeof(size_t)];
} chain[LINES];

/* Read so many lines of memory, far from each other, of which each tells where the next one is: what an interpreter
 * does from call to call. */
static void chase(int lines)
{
    volatile size_t at = 0;

    if (!chain[0].next)
        for (size_t i = 0; i < LINES; i++)
            chain[i].next = (i + 1103) % LINES;
    while (lines-- > 0)
        at = chain[at].next;
}

/* The microseconds one way; each call of MPI follows upon a chase through ``lines`` lines of memory. */
double ping_pong(char *sent, char *received, int size, int iterations, int warmup, int lines)
{
    double start = 0.0;
    int rank;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < warmup + iterations; i++) {
        if (i == warmup)
            start = MPI_Wtime();
        chase(lines);
        if (rank == 0) {
            MPI_Send(sent, size, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
            chase(lines);
            MPI_Recv(received, size, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(received, size, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            chase(lines);
            MPI_Send(sent, size, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
        }
    }
    return (MPI_Wtime() - start) * 1e6 / 2 / iterations;
}

/* The time of a send to MPI_PROC_NULL, in microseconds: the call alone. */
double send_to_nobody(int iterations)
{
    char bytes[8] = "aaaaaaa";
    double start = MPI_Wtime();
    for (int i = 0; i < iterations; i++)
        MPI_Send(bytes, 8, MPI_CHAR, MPI_PROC_NULL, 1, MPI_COMM_WORLD);
    return (MPI_Wtime() - start) * 1e6 / iterations;
}

/* Nothing, to be called with and without the interpreter's lock. */
void nothing(void)
{
}

int main(int argc, char **argv)
{
    int rank, size, provided;
    char *sent, *received;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (argc != 5)
        return 2;
    MPI_Init_thread(&argc, &argv, strcmp(argv[4], "single") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    size = atoi(argv[1]);
    if (posix_memalign((void **)&sent, page, size) || posix_memalign((void **)&received, page, size))
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(sent, 'a', size);
    memset(received, 'b', size);
    double microseconds = ping_pong(sent, received, size, atoi(argv[2]), atoi(argv[3]), 0);
    if (rank == 0)
        printf("%.6f\n", microseconds);
    MPI_Finalize();
    return 0;
}
