"""Dask over MPI, as published for MPI4Dask (arXiv:2101.08878): a scheduler on rank 0, a client on rank 1, and workers.

``python -m hidl_workloads.dask_apps.transpose --protocol=mpi --size=8000 ...``, and so ``merge``, ``svd`` and
``dataframe_sum``. Each makes its data in the workers' memory, does its work on them ``runs`` times, and holds the
result against what is known of the data. With ``protocol=tcp`` nothing but dask-mpi is needed.
"""
