"""An `mpi://` protocol for Dask's distributed, as a plug-in.

`mpi4dask.initialize()` turns the ranks of an MPI job into a cluster; `mpi4dask.LocalMPICluster` starts a cluster for a
notebook. Both use `mpi4dask.transport.start()`, which starts the transport inside an MPI job. `distributed` finds
`MPIBackend` through its entry point `distributed.comm.backends`. Outside an MPI job, `mpi://` still works, but over
sockets only.
"""

from __future__ import annotations

from mpi4dask import configuration, transport
from mpi4dask.backend import MPIBackend
from mpi4dask.counters import counters
from mpi4dask.errors import ConfigurationError, HandshakeError, Mpi4DaskError, NotStartedError, ProtocolError
from mpi4dask.launch import initialize, shutdown
from mpi4dask.local import ClusterFailed, LocalMPICluster

__version__ = "0.1.0"

configuration.add_defaults()

__all__ = [
    "ClusterFailed",
    "ConfigurationError",
    "HandshakeError",
    "LocalMPICluster",
    "MPIBackend",
    "Mpi4DaskError",
    "NotStartedError",
    "ProtocolError",
    "counters",
    "initialize",
    "shutdown",
    "transport",
]
