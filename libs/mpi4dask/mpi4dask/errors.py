"""The errors of mpi4dask: one tree."""

from __future__ import annotations

from distributed.comm import CommClosedError


class Mpi4DaskError(Exception):
    """What mpi4dask raises by itself; the parent of all others."""


class NotStartedError(Mpi4DaskError, RuntimeError):
    """The MPI transport was asked for before `mpi4dask.transport.start()` ran in this process."""


class ConfigurationError(Mpi4DaskError, ValueError):
    """A setting below `distributed.comm.mpi`, or the token in the environment, has no meaning."""


class HandshakeError(Mpi4DaskError, CommClosedError):
    """A peer could not prove that it belongs to this job, or does not speak this protocol."""


class ProtocolError(Mpi4DaskError, CommClosedError):
    """An authenticated peer sent what this version does not understand; the connection is closed."""
