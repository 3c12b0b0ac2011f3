"""hidl from Python: what the command line does, as typed functions.

::

    import hidl_cli.api as hidl

    run = hidl.run("mpi-sanity", ranks_per_node=2).wait()
    print(run.metrics["wall_time"], run.verdict)

The functions print nothing and never exit. They raise the errors of ``hidl_cli.errors``, which carry ``exit_code`` and
``hint``. ``__all__`` is the public interface; other modules of ``hidl_cli`` may change in any release.

Functions may be called from several threads. A ``Run`` holds only its directory, so threads may share it; the current
directory and the environment variables are those of the process when a function is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hidl_cli.api.installing import Installed, install
    from hidl_cli.api.replaying import Bisection, Replay, bisect, capsule, replay
    from hidl_cli.api.running import (
        Metric,
        Plan,
        Run,
        Site,
        Stack,
        Step,
        Verdict,
        Workload,
        find,
        plan,
        run,
        runs,
        sites,
        stacks,
        workloads,
    )
    from hidl_cli.errors import (
        BuildFailed,
        ExitCode,
        HidlError,
        InvalidInput,
        JobFailed,
        MetricMissing,
        MissingPrecondition,
        ProcessFailed,
        SchedulerUnreachable,
        SubmitRefused,
        UsageError,
    )
    from hidl_cli.record.run import State, Status

__all__ = [
    "Bisection",
    "BuildFailed",
    "ExitCode",
    "HidlError",
    "Installed",
    "InvalidInput",
    "JobFailed",
    "Metric",
    "MetricMissing",
    "MissingPrecondition",
    "Plan",
    "ProcessFailed",
    "Replay",
    "Run",
    "SchedulerUnreachable",
    "Site",
    "Stack",
    "State",
    "Status",
    "Step",
    "SubmitRefused",
    "UsageError",
    "Verdict",
    "Workload",
    "bisect",
    "capsule",
    "find",
    "install",
    "plan",
    "replay",
    "run",
    "runs",
    "sites",
    "stacks",
    "workloads",
]

#: Where the names of ``__all__`` are. Each is imported when it is first asked for, since a command needs few of them.
#: No module here has one of the names: its import would hide the function.
_PLACES = {
    "hidl_cli.api.installing": ("Installed", "install"),
    "hidl_cli.api.replaying": ("Bisection", "Replay", "bisect", "capsule", "replay"),
    "hidl_cli.api.running": (
        "Metric",
        "Plan",
        "Run",
        "Site",
        "Stack",
        "Step",
        "Verdict",
        "Workload",
        "find",
        "plan",
        "run",
        "runs",
        "sites",
        "stacks",
        "workloads",
    ),
    "hidl_cli.errors": (
        "BuildFailed",
        "ExitCode",
        "HidlError",
        "InvalidInput",
        "JobFailed",
        "MetricMissing",
        "MissingPrecondition",
        "ProcessFailed",
        "SchedulerUnreachable",
        "SubmitRefused",
        "UsageError",
    ),
    "hidl_cli.record.run": ("State", "Status"),
}


if not TYPE_CHECKING:  # which would take any name for one of the interface

    def __getattr__(name: str) -> Any:
        for module, names in _PLACES.items():
            if name in names:
                found = globals()[name] = getattr(import_module(module), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
