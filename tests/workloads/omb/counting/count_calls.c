/*
 * Counts what a program asks of MPI, below the program and above the library, through MPI's profiling interface (MPI
 * 4.1, chapter 15): each MPI_X here notes the call and calls PMPI_X. A process that is started with this library in
 * LD_PRELOAD writes at MPI_Finalize
 *
 *     $CALL_COUNTS/<rank>.json: [{"section": 0, "function": "MPI_Send", "sent": 8, "received": 0, "calls": 110}, ...]
 *
 * with one entry for each section, function and number of bytes. "sent" and "received" are the bytes of the buffers
 * that the call names on this rank: count times size of the datatype, for the vector forms the sums, for rooted ones 0
 * where the rank's buffer is not significant. Each MPI_Pcontrol begins the next section. The forms with large counts
 * (MPI_X_c) are counted as MPI_X. A persistent request is noted when it is made, as "MPI_X_init", and whenever it is
 * started, as "MPI_Start of MPI_X".
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROWS 20000
#define MOST_PERSISTENT 4096

struct row {
    int section;
    const char *function;
    long long sent, received, calls;
};

struct persistent {
    MPI_Request request;
    const char *function;
    long long sent, received;
};

static struct row rows[MOST_ROWS];
static int row_count, section;
static struct persistent persistents[MOST_PERSISTENT];
static int persistent_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void stop(const char *why)
{
    fprintf(stderr, "count_calls: %s\n", why);
    abort();
}

static void note(const char *function, long long sent, long long received)
{
    pthread_mutex_lock(&lock);
    int i = row_count - 1;
    while (i >= 0 && (rows[i].section != section || rows[i].sent != sent || rows[i].received != received ||
                      strcmp(rows[i].function, function) != 0))
        i--;
    if (i < 0) {
        if (row_count == MOST_ROWS)
            stop("more rows than MOST_ROWS");
        i = row_count++;
        rows[i] = (struct row){section, function, sent, received, 0};
    }
    rows[i].calls++;
    pthread_mutex_unlock(&lock);
}

static void remember(MPI_Request request, const char *function, long long sent, long long received)
{
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < persistent_count && persistents[i].request != request)
        i++; /* the handle of a request that was freed comes back for a new one */
    if (i == MOST_PERSISTENT)
        stop("more persistent requests than MOST_PERSISTENT");
    persistents[i] = (struct persistent){request, function, sent, received};
    if (i == persistent_count)
        persistent_count++;
    pthread_mutex_unlock(&lock);
}

static void note_start(MPI_Request request)
{
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < persistent_count && persistents[i].request != request)
        i++;
    struct persistent found = i < persistent_count ? persistents[i] : (struct persistent){request, "MPI_Start", 0, 0};
    pthread_mutex_unlock(&lock);
    note(found.function, found.sent, found.received);
}

static long long bytes(long long count, MPI_Datatype type)
{
    int size = 0;
    if (count == 0 || type == MPI_DATATYPE_NULL)
        return 0;
    PMPI_Type_size(type, &size);
    return count * size;
}

static int size_of(MPI_Comm comm)
{
    int size;
    PMPI_Comm_size(comm, &size);
    return size;
}

static int rank_in(MPI_Comm comm)
{
    int rank;
    PMPI_Comm_rank(comm, &rank);
    return rank;
}

/* How many neighbours send to this rank (in) and receive from it. */
static int degree(MPI_Comm comm, int in)
{
    int kind, sources, destinations, weighted, dimensions, neighbours;
    PMPI_Topo_test(comm, &kind);
    if (kind == MPI_DIST_GRAPH) {
        PMPI_Dist_graph_neighbors_count(comm, &sources, &destinations, &weighted);
        return in ? sources : destinations;
    }
    if (kind == MPI_CART) {
        PMPI_Cartdim_get(comm, &dimensions);
        return 2 * dimensions;
    }
    if (kind != MPI_GRAPH)
        stop("a neighbourhood collective on a communicator without a topology");
    PMPI_Graph_neighbors_count(comm, rank_in(comm), &neighbours);
    return neighbours;
}

#define PASTE2(a, b) a##b
#define PASTE(a, b) PASTE2(a, b)
#define OPEN(...) __VA_ARGS__

/* A function: its name, its parameters and arguments in parentheses, the bytes that it sends and receives. */
#define FUNCTION(name, suffix, parameters, arguments, sent, received)                                                  \
    int PASTE(MPI_##name, suffix)(OPEN parameters)                                                                     \
    {                                                                                                                  \
        note("MPI_" #name, sent, received);                                                                            \
        return PASTE(PMPI_##name, suffix)(OPEN arguments);                                                             \
    }

/* The same for one that makes a persistent request; `of` is the function that each start is one call of. */
#define PERSISTENT(name, of, suffix, parameters, arguments, sent, received)                                            \
    int PASTE(MPI_##name, suffix)(OPEN parameters, MPI_Request *request)                                               \
    {                                                                                                                  \
        long long out = (sent), in = (received);                                                                       \
        note("MPI_" #name, out, in);                                                                                   \
        int status = PASTE(PMPI_##name, suffix)(OPEN arguments, request);                                              \
        if (status == MPI_SUCCESS)                                                                                     \
            remember(*request, "MPI_Start of MPI_" #of, out, in);                                                      \
        return status;                                                                                                 \
    }

#define COUNT int
#define DISPLACEMENT int
#define SUFFIX
#define SUM sum
#define SUM_TYPES sum_types
#include "functions.h"

#if MPI_VERSION >= 4 /* the forms with large counts: a library that has none of them must find none of them here */
#undef COUNT
#undef DISPLACEMENT
#undef SUFFIX
#undef SUM
#undef SUM_TYPES
#define COUNT MPI_Count
#define DISPLACEMENT MPI_Aint
#define SUFFIX _c
#define SUM sum_c
#define SUM_TYPES sum_types_c
#include "functions.h"
#endif

FUNCTION(Barrier, , (MPI_Comm comm), (comm), 0, 0)
FUNCTION(Ibarrier, , (MPI_Comm comm, MPI_Request *request), (comm, request), 0, 0)
PERSISTENT(Barrier_init, Barrier, , (MPI_Comm comm, MPI_Info info), (comm, info), 0, 0)

FUNCTION(Fetch_and_op, , (const void *origin, void *result, MPI_Datatype type, int target, MPI_Aint displacement,
                          MPI_Op op, MPI_Win win),
         (origin, result, type, target, displacement, op, win), op == MPI_NO_OP ? 0 : bytes(1, type), bytes(1, type))
FUNCTION(Compare_and_swap, , (const void *origin, const void *compare, void *result, MPI_Datatype type, int target,
                              MPI_Aint displacement, MPI_Win win),
         (origin, compare, result, type, target, displacement, win), bytes(1, type), bytes(1, type))

FUNCTION(Wait, , (MPI_Request *request, MPI_Status *status), (request, status), 0, 0)
FUNCTION(Waitall, , (int count, MPI_Request requests[], MPI_Status statuses[]), (count, requests, statuses), 0, 0)
FUNCTION(Test, , (MPI_Request *request, int *flag, MPI_Status *status), (request, flag, status), 0, 0)
FUNCTION(Testall, , (int count, MPI_Request requests[], int *flag, MPI_Status statuses[]),
         (count, requests, flag, statuses), 0, 0)
FUNCTION(Request_free, , (MPI_Request *request), (request), 0, 0)

FUNCTION(Win_fence, , (int assertion, MPI_Win win), (assertion, win), 0, 0)
FUNCTION(Win_post, , (MPI_Group group, int assertion, MPI_Win win), (group, assertion, win), 0, 0)
FUNCTION(Win_start, , (MPI_Group group, int assertion, MPI_Win win), (group, assertion, win), 0, 0)
FUNCTION(Win_complete, , (MPI_Win win), (win), 0, 0)
FUNCTION(Win_wait, , (MPI_Win win), (win), 0, 0)
FUNCTION(Win_lock, , (int kind, int rank, int assertion, MPI_Win win), (kind, rank, assertion, win), 0, 0)
FUNCTION(Win_unlock, , (int rank, MPI_Win win), (rank, win), 0, 0)
FUNCTION(Win_lock_all, , (int assertion, MPI_Win win), (assertion, win), 0, 0)
FUNCTION(Win_unlock_all, , (MPI_Win win), (win), 0, 0)
FUNCTION(Win_flush, , (int rank, MPI_Win win), (rank, win), 0, 0)
FUNCTION(Win_flush_local, , (int rank, MPI_Win win), (rank, win), 0, 0)

int MPI_Start(MPI_Request *request)
{
    note_start(*request);
    return PMPI_Start(request);
}

int MPI_Startall(int count, MPI_Request requests[])
{
    for (int i = 0; i < count; i++)
        note_start(requests[i]);
    return PMPI_Startall(count, requests);
}

int MPI_Pcontrol(const int level, ...)
{
    (void)level;
    section++;
    return MPI_SUCCESS;
}

int MPI_Finalize(void)
{
    char path[4096];
    const char *directory = getenv("CALL_COUNTS");
    if (!directory)
        stop("CALL_COUNTS names no directory");
    snprintf(path, sizeof path, "%s/%d.json", directory, rank_in(MPI_COMM_WORLD));
    FILE *file = fopen(path, "w");
    if (!file)
        stop("the counts cannot be written");
    for (int i = 0; i < row_count; i++)
        fprintf(file, "%s{\"section\": %d, \"function\": \"%s\", \"sent\": %lld, \"received\": %lld, \"calls\": %lld}",
                i ? ",\n" : "[", rows[i].section, rows[i].function, rows[i].sent, rows[i].received, rows[i].calls);
    fputs(row_count ? "]\n" : "[]\n", file);
    if (fclose(file) != 0)
        stop("the counts cannot be written");
    return PMPI_Finalize();
}
