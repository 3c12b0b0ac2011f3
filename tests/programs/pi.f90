! The midpoint rule for pi, in Fortran: by MPI's C interface, since a wheel's MPI has no Fortran one (MPICH's ABI).
program midpoint
  use, intrinsic :: iso_c_binding
  implicit none
  interface
     integer(c_int) function mpi_init(argc, argv) bind(c, name='MPI_Init')
       import
       type(c_ptr), value :: argc, argv
     end function
     integer(c_int) function mpi_comm_rank(comm, rank) bind(c, name='MPI_Comm_rank')
       import
       integer(c_int), value :: comm
       integer(c_int) :: rank
     end function
     integer(c_int) function mpi_comm_size(comm, size) bind(c, name='MPI_Comm_size')
       import
       integer(c_int), value :: comm
       integer(c_int) :: size
     end function
     integer(c_int) function mpi_reduce(send, receive, count, datatype, op, root, comm) bind(c, name='MPI_Reduce')
       import
       real(c_double) :: send, receive
       integer(c_int), value :: count, datatype, op, root, comm
     end function
     integer(c_int) function mpi_finalize() bind(c, name='MPI_Finalize')
     import
     end function
  end interface
  integer(c_int), parameter :: world = int(z'44000000'), double = int(z'4c00080b'), sum = int(z'58000003')
  integer(c_int) :: rank, size, error
  integer(8) :: i, n = 10000000_8
  real(c_double) :: total = 0, pi = 0, x
  error = mpi_init(c_null_ptr, c_null_ptr)
  error = mpi_comm_rank(world, rank)
  error = mpi_comm_size(world, size)
  do i = rank, n - 1, size
     x = (i + 0.5d0) / n
     total = total + 4 / (1 + x * x)
  end do
  total = total / n
  error = mpi_reduce(total, pi, 1_c_int, double, sum, 0_c_int, world)
  if (rank == 0) print '(a, f8.6, a, i0, a)', 'pi is ', pi, ' on ', size, ' ranks'
  error = mpi_finalize()
end program
