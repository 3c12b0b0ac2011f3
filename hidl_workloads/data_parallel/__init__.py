"""Data-parallel training over mpi4py: equal starts, averaged gradients, and a proof that all ranks have one model.

``buckets`` works on NumPy arrays and knows no framework; ``torch`` and ``tensorflow`` hand it their memory.
"""
