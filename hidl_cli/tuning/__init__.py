"""MPI library tuning: the catalogue of run-time variables, and the layers that set them."""
