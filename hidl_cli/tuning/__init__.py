"""Tuning: the run-time variables of MPI libraries, typed, and the layers that they come from."""
