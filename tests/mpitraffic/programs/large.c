/* Send more than 2^31 bytes to rank 1, by a large datatype and, where MPI has it, a large count; then a phase. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    const size_t bytes = (size_t)3 << 30;
    int rank;
    MPI_Datatype part, whole;
    char *buffer = calloc(bytes, 1);

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!buffer)
        MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Type_contiguous(1 << 30, MPI_BYTE, &part);
    MPI_Type_contiguous(3, part, &whole);
    MPI_Type_commit(&whole);
    if (rank == 0)
        MPI_Send(buffer, 1, whole, 1, 0, MPI_COMM_WORLD);
    else
        MPI_Recv(buffer, 1, whole, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
#if MPI_VERSION >= 4
    if (rank == 0)
        MPI_Send_c(buffer, (MPI_Count)bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    else
        MPI_Recv_c(buffer, (MPI_Count)bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
#endif
    MPI_Pcontrol(7);
    if (rank == 0)
        MPI_Send(buffer, 1000, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD);
    else
        MPI_Recv(buffer, 1000, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Pcontrol(-7);
    if (rank == 0)
        printf("%d\n", 8000);
    MPI_Finalize();
    free(buffer);
    return 0;
}
