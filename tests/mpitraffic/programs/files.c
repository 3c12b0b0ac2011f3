/* Send 100 bytes around a ring, then write and read 1000 doubles of a file: files FILE */
#include <mpi.h>

int main(int argc, char **argv)
{
    static double numbers[1000];
    char out[100] = {0}, in[100];
    int rank, size;
    MPI_File file;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Sendrecv(out, 100, MPI_CHAR, (rank + 1) % size, 0, in, 100, MPI_CHAR, (rank + size - 1) % size, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) != MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_File_write_at_all(file, rank * sizeof numbers, numbers, 1000, MPI_DOUBLE, MPI_STATUS_IGNORE);
    MPI_File_read_at(file, rank * sizeof numbers, numbers, 1000, MPI_DOUBLE, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
    MPI_Finalize();
    return 0;
}
