/* Shared by recorder.c and the generated wrappers of MPI's functions. */
#ifndef RECORDER_H
#define RECORDER_H

#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef OPEN_MPI
/* Open MPI's handles are addresses of its data. The recorder is not linked with MPI and looks them up. */
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, global) ((type)recorder_symbol(#global))
#endif

#define EXPORTED __attribute__((visibility("default")))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* How the traffic of a call is addressed; the reader expands EACH and SHARED to pairs of ranks. */
enum { PAIR = 2, EACH = 3, SHARED = 4 };
/* What a pair of ranks exchanged by, and in which direction. */
enum { POINT_TO_POINT = 0, COLLECTIVE = 1, ONE_SIDED = 2 };
enum { SENT = 0, RECEIVED = 4, FETCHED = 8 };
enum { NO_COMMUNICATOR = -1, NO_PEER = -1 };

/* A set of ranks: a communicator, or the group of a window. */
struct slot {
    int id;
    int size;
    int me;
    int inter;
    int alive;
    int ordinal;
    uint64_t hash;
    int *world; /* world ranks of the members, of the remote group for an intercommunicator */
    int neighbours_known, out_degree;
    int *out; /* ranks of the neighbours to which this rank sends */
};

struct operation {
    int kind;
    int channel;
    int peer; /* world rank */
    struct slot *slot;
    int64_t bytes;
};

/* A request or message that is not complete, or a persistent request. */
struct pending {
    uint64_t handle;
    struct slot *slot;
    int receives, persistent, is_message;
    int operations_count;
    struct operation *operations;
    struct pending *next;
};

struct thread;

struct call {
    struct thread *thread;
    uint64_t begin, end, waited;
};

extern const char *const recorder_names[];
extern const int recorder_names_count;

void *recorder_symbol(const char *name);
int recorder_enter(struct call *call);
/* Record a call that ended, and leave the recorder. */
void recorder_leave(struct call *call, int id, const struct slot *slot, int64_t bytes);
struct slot *recorder_slot(struct call *call, MPI_Comm comm);
struct slot *recorder_window(MPI_Win win);
void recorder_created(struct call *call, MPI_Comm comm);
int64_t recorder_size(int64_t count, MPI_Datatype type);
void recorder_wait_for_all(struct call *call, MPI_Comm comm);
int recorder_waits_for_all(void);

void traffic_pair(struct call *call, int channel, struct slot *slot, int peer, int64_t bytes);
void traffic_each(struct call *call, struct slot *slot, int64_t bytes);
void traffic_from_root(struct call *call, struct slot *slot, int root, int64_t bytes);
void traffic_to_root(struct call *call, struct slot *slot, int root, int64_t bytes);
void traffic_shared(struct call *call, struct slot *slot, int64_t bytes);
void traffic_next(struct call *call, struct slot *slot, int64_t bytes);
int recorder_is_root(const struct slot *slot, int root);
int recorder_neighbours(struct slot *slot, MPI_Comm comm);

int64_t recorder_received(struct call *call, struct slot *slot, MPI_Status *status);
void recorder_track(struct slot *slot, uint64_t handle, int is_message);
/* Between these two, traffic is kept with the persistent request instead of being recorded. */
void recorder_capture(struct call *call);
void recorder_captured(struct call *call, struct slot *slot, uint64_t handle, int receives);
int64_t recorder_started(struct call *call, uint64_t handle, struct slot **slot);
int recorder_tracks(void);
struct pending *recorder_pending(uint64_t handle, int is_message);
int64_t recorder_completed(struct call *call, struct pending *pending, MPI_Status *status);
void recorder_forget(struct pending *pending);

#define HANDLE(handle) ((uint64_t)(uintptr_t)(handle))

#endif
