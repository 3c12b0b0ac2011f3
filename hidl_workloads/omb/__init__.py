"""Micro-benchmarks of MPI from Python that speak the language of the OSU Micro-Benchmarks (OMB).

``python -m hidl_workloads.omb latency -m 8:4096 -c``: OMB's names, options, defaults, patterns of communication and
output, so that parsers of OMB's output read it; it measures what a Python program gets through mpi4py.
Source of names, defaults and formats: OMB 7.4, https://mvapich.cse.ohio-state.edu/benchmarks/.
"""
