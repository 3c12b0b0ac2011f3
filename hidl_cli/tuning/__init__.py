"""Tuning: the catalogue of MPI run-time variables, and the layers that set them."""
