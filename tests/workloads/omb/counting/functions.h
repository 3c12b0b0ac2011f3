/* The functions that have counts, for one kind of counts: COUNT, DISPLACEMENT, SUFFIX, SUM and SUM_TYPES are set. */

static long long SUM(const COUNT counts[], int number, MPI_Datatype type)
{
    long long total = 0;
    for (int i = 0; i < number; i++)
        total += bytes(counts[i], type);
    return total;
}

static long long SUM_TYPES(const COUNT counts[], int number, const MPI_Datatype types[])
{
    long long total = 0;
    for (int i = 0; i < number; i++)
        total += bytes(counts[i], types[i]);
    return total;
}

/* Point to point. */

#define SEND(name)                                                                                                     \
    FUNCTION(name, SUFFIX, (const void *buffer, COUNT count, MPI_Datatype type, int rank, int tag, MPI_Comm comm),     \
             (buffer, count, type, rank, tag, comm), bytes(count, type), 0)
#define ISEND(name)                                                                                                    \
    FUNCTION(name, SUFFIX, (const void *buffer, COUNT count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,      \
                            MPI_Request *request),                                                                     \
             (buffer, count, type, rank, tag, comm, request), bytes(count, type), 0)
SEND(Send)
SEND(Ssend)
SEND(Rsend)
SEND(Bsend)
ISEND(Isend)
ISEND(Issend)
ISEND(Irsend)
ISEND(Ibsend)
#undef SEND
#undef ISEND

FUNCTION(Recv, SUFFIX, (void *buffer, COUNT count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
                        MPI_Status *status),
         (buffer, count, type, rank, tag, comm, status), 0, bytes(count, type))
FUNCTION(Irecv, SUFFIX, (void *buffer, COUNT count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
                         MPI_Request *request),
         (buffer, count, type, rank, tag, comm, request), 0, bytes(count, type))
FUNCTION(Mrecv, SUFFIX, (void *buffer, COUNT count, MPI_Datatype type, MPI_Message *message, MPI_Status *status),
         (buffer, count, type, message, status), 0, bytes(count, type))
FUNCTION(Sendrecv, SUFFIX, (const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, int to, int sendtag,
                            void *recvbuf, COUNT recvcount, MPI_Datatype recvtype, int from, int recvtag,
                            MPI_Comm comm, MPI_Status *status),
         (sendbuf, sendcount, sendtype, to, sendtag, recvbuf, recvcount, recvtype, from, recvtag, comm, status),
         bytes(sendcount, sendtype), bytes(recvcount, recvtype))
PERSISTENT(Send_init, Send, SUFFIX, (const void *buffer, COUNT count, MPI_Datatype type, int rank, int tag,
                                     MPI_Comm comm),
           (buffer, count, type, rank, tag, comm), bytes(count, type), 0)
PERSISTENT(Recv_init, Recv, SUFFIX, (void *buffer, COUNT count, MPI_Datatype type, int rank, int tag, MPI_Comm comm),
           (buffer, count, type, rank, tag, comm), 0, bytes(count, type))

/* One-sided. */

FUNCTION(Put, SUFFIX, (const void *origin, COUNT count, MPI_Datatype type, int target, MPI_Aint displacement,
                       COUNT target_count, MPI_Datatype target_type, MPI_Win win),
         (origin, count, type, target, displacement, target_count, target_type, win), bytes(count, type), 0)
FUNCTION(Get, SUFFIX, (void *origin, COUNT count, MPI_Datatype type, int target, MPI_Aint displacement,
                       COUNT target_count, MPI_Datatype target_type, MPI_Win win),
         (origin, count, type, target, displacement, target_count, target_type, win), 0, bytes(count, type))
FUNCTION(Accumulate, SUFFIX, (const void *origin, COUNT count, MPI_Datatype type, int target, MPI_Aint displacement,
                              COUNT target_count, MPI_Datatype target_type, MPI_Op op, MPI_Win win),
         (origin, count, type, target, displacement, target_count, target_type, op, win), bytes(count, type), 0)
FUNCTION(Get_accumulate, SUFFIX, (const void *origin, COUNT count, MPI_Datatype type, void *result, COUNT result_count,
                                  MPI_Datatype result_type, int target, MPI_Aint displacement, COUNT target_count,
                                  MPI_Datatype target_type, MPI_Op op, MPI_Win win),
         (origin, count, type, result, result_count, result_type, target, displacement, target_count, target_type, op,
          win),
         op == MPI_NO_OP ? 0 : bytes(count, type), bytes(result_count, result_type))

/* Collectives, in their three forms. */

#define BLOCKING_AND_NOT(name, lower, parameters, arguments, sent, received)                                           \
    FUNCTION(name, SUFFIX, parameters, arguments, sent, received)                                                      \
    FUNCTION(I##lower, SUFFIX, (OPEN parameters, MPI_Request *request), (OPEN arguments, request), sent, received)
#define COLLECTIVE(name, lower, parameters, arguments, sent, received)                                                 \
    BLOCKING_AND_NOT(name, lower, parameters, arguments, sent, received)                                               \
    PERSISTENT(name##_init, name, SUFFIX, (OPEN parameters, MPI_Info info), (OPEN arguments, info), sent, received)

#define N size_of(comm)
#define IN_PLACE (sendbuf == MPI_IN_PLACE)
#define AT_ROOT (rank_in(comm) == root)

COLLECTIVE(Allgather, allgather,
           (const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, void *recvbuf, COUNT recvcount,
            MPI_Datatype recvtype, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm),
           IN_PLACE ? bytes(recvcount, recvtype) : bytes(sendcount, sendtype), N * bytes(recvcount, recvtype))
COLLECTIVE(Allgatherv, allgatherv,
           (const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, void *recvbuf, const COUNT recvcounts[],
            const DISPLACEMENT displacements[], MPI_Datatype recvtype, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displacements, recvtype, comm),
           IN_PLACE ? bytes(recvcounts[rank_in(comm)], recvtype) : bytes(sendcount, sendtype),
           SUM(recvcounts, N, recvtype))
COLLECTIVE(Allreduce, allreduce,
           (const void *sendbuf, void *recvbuf, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
           (sendbuf, recvbuf, count, type, op, comm), bytes(count, type), bytes(count, type))
COLLECTIVE(Alltoall, alltoall,
           (const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, void *recvbuf, COUNT recvcount,
            MPI_Datatype recvtype, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm),
           N * (IN_PLACE ? bytes(recvcount, recvtype) : bytes(sendcount, sendtype)), N * bytes(recvcount, recvtype))
COLLECTIVE(Alltoallv, alltoallv,
           (const void *sendbuf, const COUNT sendcounts[], const DISPLACEMENT senddispls[], MPI_Datatype sendtype,
            void *recvbuf, const COUNT recvcounts[], const DISPLACEMENT recvdispls[], MPI_Datatype recvtype,
            MPI_Comm comm),
           (sendbuf, sendcounts, senddispls, sendtype, recvbuf, recvcounts, recvdispls, recvtype, comm),
           IN_PLACE ? SUM(recvcounts, N, recvtype) : SUM(sendcounts, N, sendtype), SUM(recvcounts, N, recvtype))
COLLECTIVE(Alltoallw, alltoallw,
           (const void *sendbuf, const COUNT sendcounts[], const DISPLACEMENT senddispls[],
            const MPI_Datatype sendtypes[], void *recvbuf, const COUNT recvcounts[], const DISPLACEMENT recvdispls[],
            const MPI_Datatype recvtypes[], MPI_Comm comm),
           (sendbuf, sendcounts, senddispls, sendtypes, recvbuf, recvcounts, recvdispls, recvtypes, comm),
           IN_PLACE ? SUM_TYPES(recvcounts, N, recvtypes) : SUM_TYPES(sendcounts, N, sendtypes),
           SUM_TYPES(recvcounts, N, recvtypes))
COLLECTIVE(Bcast, bcast, (void *buffer, COUNT count, MPI_Datatype type, int root, MPI_Comm comm),
           (buffer, count, type, root, comm), AT_ROOT ? bytes(count, type) : 0, AT_ROOT ? 0 : bytes(count, type))
COLLECTIVE(Gather, gather,
           (const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, void *recvbuf, COUNT recvcount,
            MPI_Datatype recvtype, int root, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm),
           IN_PLACE ? bytes(recvcount, recvtype) : bytes(sendcount, sendtype),
           AT_ROOT ? N * bytes(recvcount, recvtype) : 0)
COLLECTIVE(Gatherv, gatherv,
           (const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, void *recvbuf, const COUNT recvcounts[],
            const DISPLACEMENT displacements[], MPI_Datatype recvtype, int root, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displacements, recvtype, root, comm),
           IN_PLACE ? bytes(recvcounts[root], recvtype) : bytes(sendcount, sendtype),
           AT_ROOT ? SUM(recvcounts, N, recvtype) : 0)
COLLECTIVE(Reduce, reduce,
           (const void *sendbuf, void *recvbuf, COUNT count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
           (sendbuf, recvbuf, count, type, op, root, comm), bytes(count, type), AT_ROOT ? bytes(count, type) : 0)
COLLECTIVE(Reduce_scatter, reduce_scatter,
           (const void *sendbuf, void *recvbuf, const COUNT recvcounts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm),
           (sendbuf, recvbuf, recvcounts, type, op, comm), SUM(recvcounts, N, type),
           bytes(recvcounts[rank_in(comm)], type))
COLLECTIVE(Reduce_scatter_block, reduce_scatter_block,
           (const void *sendbuf, void *recvbuf, COUNT recvcount, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
           (sendbuf, recvbuf, recvcount, type, op, comm), N * bytes(recvcount, type), bytes(recvcount, type))
COLLECTIVE(Scatter, scatter,
           (const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, void *recvbuf, COUNT recvcount,
            MPI_Datatype recvtype, int root, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm),
           AT_ROOT ? N * bytes(sendcount, sendtype) : 0,
           recvbuf == MPI_IN_PLACE ? bytes(sendcount, sendtype) : bytes(recvcount, recvtype))
COLLECTIVE(Scatterv, scatterv,
           (const void *sendbuf, const COUNT sendcounts[], const DISPLACEMENT displacements[], MPI_Datatype sendtype,
            void *recvbuf, COUNT recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm),
           (sendbuf, sendcounts, displacements, sendtype, recvbuf, recvcount, recvtype, root, comm),
           AT_ROOT ? SUM(sendcounts, N, sendtype) : 0,
           recvbuf == MPI_IN_PLACE ? bytes(sendcounts[root], sendtype) : bytes(recvcount, recvtype))

/* On a neighbourhood. */

#define SOURCES degree(comm, 1)
#define DESTINATIONS degree(comm, 0)

BLOCKING_AND_NOT(Neighbor_allgather, neighbor_allgather,
                 (const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, void *recvbuf, COUNT recvcount,
                  MPI_Datatype recvtype, MPI_Comm comm),
                 (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm), bytes(sendcount, sendtype),
                 SOURCES * bytes(recvcount, recvtype))
BLOCKING_AND_NOT(Neighbor_allgatherv, neighbor_allgatherv,
                 (const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, void *recvbuf, const COUNT recvcounts[],
                  const DISPLACEMENT displacements[], MPI_Datatype recvtype, MPI_Comm comm),
                 (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displacements, recvtype, comm),
                 bytes(sendcount, sendtype), SUM(recvcounts, SOURCES, recvtype))
BLOCKING_AND_NOT(Neighbor_alltoall, neighbor_alltoall,
                 (const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, void *recvbuf, COUNT recvcount,
                  MPI_Datatype recvtype, MPI_Comm comm),
                 (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm),
                 DESTINATIONS * bytes(sendcount, sendtype), SOURCES * bytes(recvcount, recvtype))
BLOCKING_AND_NOT(Neighbor_alltoallv, neighbor_alltoallv,
                 (const void *sendbuf, const COUNT sendcounts[], const DISPLACEMENT senddispls[],
                  MPI_Datatype sendtype, void *recvbuf, const COUNT recvcounts[], const DISPLACEMENT recvdispls[],
                  MPI_Datatype recvtype, MPI_Comm comm),
                 (sendbuf, sendcounts, senddispls, sendtype, recvbuf, recvcounts, recvdispls, recvtype, comm),
                 SUM(sendcounts, DESTINATIONS, sendtype), SUM(recvcounts, SOURCES, recvtype))
BLOCKING_AND_NOT(Neighbor_alltoallw, neighbor_alltoallw,
                 (const void *sendbuf, const COUNT sendcounts[], const MPI_Aint senddispls[],
                  const MPI_Datatype sendtypes[], void *recvbuf, const COUNT recvcounts[],
                  const MPI_Aint recvdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm),
                 (sendbuf, sendcounts, senddispls, sendtypes, recvbuf, recvcounts, recvdispls, recvtypes, comm),
                 SUM_TYPES(sendcounts, DESTINATIONS, sendtypes), SUM_TYPES(recvcounts, SOURCES, recvtypes))

#undef BLOCKING_AND_NOT
#undef COLLECTIVE
#undef N
#undef IN_PLACE
#undef AT_ROOT
#undef SOURCES
#undef DESTINATIONS
