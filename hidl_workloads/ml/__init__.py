"""Machine learning over MPI: k-means and its hyper-parameter sweep, k nearest neighbours, matrix products, linear
regression, truncated SVD. One module is one program: ``python -m hidl_workloads.ml.kmeans --clusters=8 ...``.

Data come from counter-based random streams or a file and do not depend on the number of ranks. Arrays are NumPy's, or
CuPy's with ``--device=gpu``. Every program checks its own result by a property that it did not compute it from.
"""
