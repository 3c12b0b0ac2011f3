"""The Python API of hidl, which offers the command line's functions with typed arguments and results.

::

    import hidl_cli.api as hidl

    run = hidl.run("mpi-sanity", ranks_per_node=2).wait()
    print(run.metrics["wall_time"], run.verdict)

The functions print nothing and never exit the process. They raise the errors of ``hidl_cli.errors``, which have an
``exit_code`` and a ``hint``. ``__all__`` is the public interface; other modules of ``hidl_cli`` may change in any
release.

The functions are thread-safe. A ``Run`` holds only its directory, so threads may share it. Every call uses the
process's current directory and environment variables at that time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hidl_cli.api.capsules import Bisection, Replay, bisect, capsule, replay
    from hidl_cli.api.execution import (
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
    from hidl_cli.api.software import Installed, install
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
    from hidl_cli.record import State, Status

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

#: The modules that define the names in ``__all__``. They are imported on first access, because a command needs only a
#: few of them. No module of this package may have the name of a function, since importing the module would shadow the
#: function.
_MODULES = {
    "hidl_cli.api.software": ("Installed", "install"),
    "hidl_cli.api.capsules": ("Bisection", "Replay", "bisect", "capsule", "replay"),
    "hidl_cli.api.execution": (
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
    "hidl_cli.record": ("State", "Status"),
}


if not TYPE_CHECKING:  # a type checker would otherwise accept any name

    def __getattr__(name: str) -> Any:
        for module, names in _MODULES.items():
            if name in names:
                found = globals()[name] = getattr(import_module(module), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
