"""Check the size of MPI's world before any other work, then run a module in the same process.

::

    HIDL_WORLD_SIZE=2 mpiexec -n 2 python -m hidl_workloads.world [--gpu-aware] [--chooses-gpu] [MODULE [ARG...]]

A launcher whose process-management interface (PMI) the program's MPI library does not speak starts N programs that
are each alone in a world of size 1, and every one of them ends with status 0. So the size is compared with
``$HIDL_WORLD_SIZE`` first; every rank of a wrong world ends with ``WRONG_WORLD``. A rank that fails later ends all
ranks at once: the others would wait for it for ever.

In a run on GPUs, a rank sees its own first. With ``--chooses-gpu``, it sees those of its job as they are: the module
chooses by its local rank. With ``--gpu-aware``, an MPI library that says that it does not read GPU memory is an error.

Without a module, a run on GPUs leaves the hosts and the GPUs of all ranks in ``world.json`` beside ``$HIDL_METRICS``.

Before and after MPI is initialised, ``hidl_workloads.doctor`` looks for what would go wrong, and tells it on stderr.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager, suppress

from hidl_workloads import killed_ranks, launcher_environment, streams

TYPE_CHECKING = False  # the typing module is not imported at run time: start-up time counts
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import NoReturn

    from mpi4py import MPI

    from hidl_workloads.doctor.ranks import World

EXPECTED_SIZE = "HIDL_WORLD_SIZE"
WRONG_WORLD = 86
"""Exit status of every rank of a world that has not the expected size."""

SITE_LIBRARY = "HIDL_SITE_MPI"
"""Names the site's MPI library that is to take the place of the stack's own."""
WRONG_LIBRARY = 87
"""Exit status of every rank where the stack's own was loaded."""

NO_GPU = 88
"""Exit status of every rank of a run on GPUs if one of them has none."""

UNREADABLE = 89
"""Exit status of every rank of a run on GPUs if the MPI library of one is not GPU-aware, and must be."""

GPU_AWARE = "--gpu-aware"
"""Before the module's name: in a run on GPUs, the program that follows gives MPI the addresses of GPU memory."""
CHOOSES_GPU = "--chooses-gpu"
"""Before the module's name: it chooses its GPU by its local rank, of all that its job may see."""

_NO_EXPECTATION = 2
_INTERRUPTED = 130

# Seconds that ranks that do not know of each other wait for the others. A launcher ends all ranks when the first one
# fails; after the wait, the message has been printed, and the step's status is not that of a signal.
_GATHERING_SECONDS = 2.0

_KIND_VARIABLES = ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "PMIX_NAMESPACE", "SLURM_MPI_TYPE", "MPIRUN_RSH_LAUNCH")


def main(arguments: list[str]) -> int:
    """Check the world and run ``arguments[0]`` as a module with the rest as its arguments; returns the exit status."""
    expected = os.environ.get(EXPECTED_SIZE, "")
    if not expected.isdecimal() or int(expected) < 1:
        _say(f"hidl: ${EXPECTED_SIZE} must be the requested number of ranks, not {expected!r}")
        return _NO_EXPECTATION
    from hidl_workloads.doctor import preflight

    killed_ranks.remove_shared_memory(os.environ)
    here = preflight.before_mpi()
    gives_gpu_memory, arguments = _option(GPU_AWARE, arguments)
    chooses, arguments = _option(CHOOSES_GPU, arguments)
    own_first = not chooses
    wants_gpu = os.environ.get("HIDL_DEVICE") == "gpu"
    local_rank = launcher_environment.read_number(launcher_environment.LOCAL_RANKS, os.environ)
    fault = _take_gpu(local_rank, first=own_first) if wants_gpu else None  # before MPI opens them
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.size != int(expected):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if _prints_the_message(world.rank, os.environ):
            _say(_format_wrong_world(_wrong_world(int(expected), os.environ)))
        if world.size == 1:
            time.sleep(_GATHERING_SECONDS)
        return WRONG_WORLD
    if of_the_stack := _library_of_the_stack(os.environ):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if world.rank == 0:
            _say(of_the_stack)
        return WRONG_LIBRARY
    if wants_gpu and (without := _without_gpu(world, fault, first=own_first)):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if world.rank == 0:
            _say(without)
        return NO_GPU
    if wants_gpu and gives_gpu_memory and (unreadable := _unreadable(world)):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if world.rank == 0:
            _say(unreadable)
        return UNREADABLE
    preflight.with_mpi(world, here)
    if wants_gpu and not arguments:
        from hidl_workloads import metrics

        metrics.report_world(world)
    if arguments:
        import gc
        import runpy

        with failure_ends_all_ranks():
            sys.argv = list(arguments)
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        gc.freeze()  # Python would search the framework's objects for cycles on exit: 0.7 s after a training
    return 0


def _option(name: str, arguments: list[str]) -> tuple[bool, list[str]]:
    """Return True if ``arguments`` begin with this option, and the arguments after it."""
    return (True, arguments[1:]) if arguments[:1] == [name] else (False, arguments)


def _take_gpu(local_rank: int | None, *, first: bool) -> str | None:
    """Take the GPU of this rank, as the first that it sees or where it stands; return why there is none.

    Empty: the local rank is unknown before MPI is up.
    """
    if local_rank is None:
        return ""
    from hidl_workloads import gpus

    try:
        gpus.take(os.environ, local_rank, first=first)
    except gpus.NoGpu as error:
        return str(error)
    return None


def _without_gpu(world: MPI.Comm, fault: str | None, *, first: bool) -> str | None:
    """Return what to say if a rank has no GPU, for the first such rank; None if each has one. Collective."""
    from mpi4py import MPI

    from hidl_workloads import gpus

    neighbours = world.Split_type(MPI.COMM_TYPE_SHARED)
    if fault == "":
        fault = _take_gpu(neighbours.rank, first=first)
    neighbours.Free()
    told = world.allgather((fault, MPI.Get_processor_name()))
    missing = [(rank, reason, host) for rank, (reason, host) in enumerate(told) if reason is not None]
    if not missing:
        return None
    rank, reason, host = missing[0]
    return gpus.message(reason or "", host, rank, len(missing), world.size)


def _unreadable(world: MPI.Comm) -> str | None:
    """Return what to say if the MPI library of a rank tells that it reads no GPU memory; else None. Collective."""
    from hidl_workloads import gpu_aware

    answers = [gpu_aware.ask(vendor) for vendor in ("cuda", "rocm")]
    denied = answers[0].source if all(answer.aware is False for answer in answers) else None
    source = next(filter(None, world.allgather(denied)), None)
    if source is None:
        return None
    return (
        f"hidl: the buffers are in GPU memory, which this MPI library does not read ({source})\n"
        "next: use --mpi with a GPU-aware library of the site (see hidl site show), or buffers on the host"
    )


def _library_of_the_stack(environment: Mapping[str, str]) -> str | None:
    """Return the warning if the stack's own MPI library is loaded instead of the site's; None otherwise."""
    wanted = environment.get(SITE_LIBRARY)
    if not wanted:
        return None
    from pathlib import Path

    from hidl_workloads import mpi_library

    own = [
        str(path) for path in mpi_library.mapped() or () if path.resolve().is_relative_to(Path(sys.prefix).resolve())
    ]
    if not own:
        return None
    return (
        f"hidl: the ranks loaded the stack's own MPI library, {own[0]}, because the site's, {wanted}, is not on "
        "LD_LIBRARY_PATH\n"
        f"next: set `modules` or `prefix` of {wanted} in the site file, or use the stack's own with --mpi stack"
    )


def _wrong_world(expected: int, environment: Mapping[str, str]) -> World:
    """This rank's world, which is not of the expected size, with what its launcher told it."""
    from mpi4py import MPI

    from hidl_workloads import mpi_library
    from hidl_workloads.doctor.ranks import World, this_rank

    rank = this_rank(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, version=mpi_library.version())
    names = (*launcher_environment.SIZES, *launcher_environment.RANKS, *_KIND_VARIABLES)
    seen = tuple(f"{name}={environment[name]}" for name in names if name in environment)
    nothing = "no launcher variable found: the launcher did not start the program, or its environment was not passed on"
    return World((rank,), expected=expected, evidence=seen or (nothing,))


def _format_wrong_world(world: World) -> str:
    """Return what is wrong with ``world``, why, and what to check; record it in the run's findings."""
    from hidl_workloads.doctor import preflight
    from hidl_workloads.doctor.ranks import RULES

    (wrong,) = [finding for finding in RULES.findings(world) if finding.rule in ("HD001", "HD008")]
    preflight.keep([wrong])
    what, *more = wrong.seen.split("; ")
    lines = (wrong.why, f"fix: {wrong.fix}", "The MPI library of the program, and what its launcher reported:")
    return "\n".join((f"hidl: {wrong.severity} {wrong.rule}: {what}.", *lines, *(f"  {each}" for each in more)))


@contextmanager
def failure_ends_all_ranks() -> Iterator[None]:
    """Turn an exception, or an exit with a status other than 0, into the end of all ranks (``MPI_Abort``)."""
    try:
        yield
    except SystemExit as stop:
        if stop.code is None or stop.code == 0:
            raise
        if isinstance(stop.code, int):
            _abort(stop.code)
        _say(str(stop.code))
        _abort(1)
    except KeyboardInterrupt:
        _abort(_INTERRUPTED)
    except BaseException:
        import traceback

        from mpi4py import MPI

        world = MPI.COMM_WORLD
        _say(f"{traceback.format_exc()}hidl: rank {world.rank} of {world.size} failed (above); all ranks are ended.")
        _abort(1)


def hide_launcher() -> None:
    """Remove from the environment by which frameworks find ranks, once MPI has read it.

    accelerate, and with it ``transformers.Trainer``, then trains in this process alone: it neither shards the data
    nor starts ``torch.distributed``.
    """
    import mpi4py.MPI  # noqa: F401 - initializes MPI

    for name in launcher_environment.READ_BY_FRAMEWORKS:
        os.environ.pop(name, None)


def _abort(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor in (1, 2):
        with suppress(OSError):  # it is closed
            streams.wait_until_read(descriptor)
    from mpi4py import MPI

    # A status such as 256 would reach the launcher as 0.
    MPI.COMM_WORLD.Abort(status & 0xFF or 1)
    os._exit(status & 0xFF or 1)  # under srun, MPI_Abort can return; the launcher then ends the other ranks


def _prints_the_message(rank: int, environment: Mapping[str, str]) -> bool:
    """Return True if this process prints the message: rank 0, according to MPI or the launcher's variables."""
    if rank != 0:
        return False
    return launcher_environment.read_number(launcher_environment.RANKS, environment) in (None, 0)


def _say(text: str) -> None:
    """Write ``text`` to stderr in one piece, so that other ranks' lines do not come between."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
