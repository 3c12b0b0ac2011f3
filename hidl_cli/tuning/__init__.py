"""Tuning of MPI libraries: the catalogue of run-time variables, and the layers that set them."""
