"""The exceptions of mpi4dask."""

from __future__ import annotations

from distributed.comm import CommClosedError


class Mpi4DaskError(Exception):
    """Base class of all exceptions of mpi4dask."""


class NotStartedError(Mpi4DaskError, RuntimeError):
    """The MPI transport was used before `mpi4dask.transport.start()` ran in this process."""


class ConfigurationError(Mpi4DaskError, ValueError):
    """A setting below `distributed.comm.mpi`, or the token in the environment, is invalid."""


class HandshakeError(Mpi4DaskError, CommClosedError):
    """A peer failed to prove that it belongs to this job, or does not speak this protocol."""


class ProtocolError(Mpi4DaskError, CommClosedError):
    """An authenticated peer sent data that this version cannot interpret; the connection is closed."""
