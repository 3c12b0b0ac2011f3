"""mpi4dask: an `mpi://` protocol for Dask's distributed, as a plug-in.

`mpi4dask.transport.start()` brings the transport up inside an MPI job; `distributed` then finds `MPIBackend` through
its entry point `distributed.comm.backends`. Without an MPI world, `mpi://` still works, over sockets alone.
"""

from __future__ import annotations

from mpi4dask import configuration, transport
from mpi4dask.backend import MPIBackend
from mpi4dask.counters import counters
from mpi4dask.errors import ConfigurationError, HandshakeError, Mpi4DaskError, NotStartedError, ProtocolError

__version__ = "0.1.0"

configuration.add_defaults()

__all__ = [
    "ConfigurationError",
    "HandshakeError",
    "MPIBackend",
    "Mpi4DaskError",
    "NotStartedError",
    "ProtocolError",
    "counters",
    "transport",
]
