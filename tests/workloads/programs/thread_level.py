"""Says with which thread level MPI was initialised."""

from mpi4py import MPI

print({MPI.THREAD_SINGLE: "single", MPI.THREAD_MULTIPLE: "multiple"}[MPI.Query_thread()])
