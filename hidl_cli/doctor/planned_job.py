"""The planned job: its MPI library, its launcher, and the environment of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hidl_cli.doctor.context import Context
from hidl_cli.errors import UsageError
from hidl_cli.launch.launchers.srun import mpi_type
from hidl_cli.launch.library import launcher_for, library_for, site_tuning
from hidl_cli.mpi import Library
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.workload import Value
from hidl_cli.stack.installation import UNSET

#: Launchers that are not part of an MPI library.
_OF_THE_SITE = ("srun", "ibrun", "jsrun")
_EXPORTING = ("-export", "-export-all")
_GPU_ARRAYS = ("cupy", "numba")


@dataclass(frozen=True)
class PlannedJob:
    """The job of the plan, or the one that hidl would plan by default.

    ``library``: linked by its ranks, None if unknown. ``program``: of its launcher, a path or a name; ``mpi_type``: of
    ``srun --mpi=``. ``given``: variables that hidl or the site sets for all ranks. ``carried``: other variables of the
    shell that started hidl; they reach the ranks if ``is_carried``. ``planned``: the run is about to be submitted.
    ``device_buffers``: its program passes GPU memory to MPI. ``is_active``: the stack is activated in the shell, where
    launchers may be called manually.
    """

    library: Library | None = None
    launcher: str | None = None
    program: str | None = None
    mpi_type: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)
    is_carried: bool = True
    planned: bool = False
    device_buffers: bool = False
    is_active: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the ranks."""
        return {**(self.carried if self.is_carried else {}), **self.given}


def plan_job(context: Context) -> PlannedJob:
    """The job of the plan, of the installation, or one with only an environment."""
    plan, site = context.plan, context.site
    library: Library | None
    launcher: str | None
    program: str | None
    if plan is not None:
        launch = plan.steps[0].launch
        library, launcher, program = plan.mpi, plan.launcher, launch.argv[0]
        kind = next((word.partition("=")[2] for word in launch.argv if word.startswith("--mpi=")), None)
        given = {**plan.environment, **launch.environment}
    else:
        library = _library(context)
        launcher = _launcher(context, library) if library else None
        program = _program(library, launcher) if library and launcher else None
        kind = mpi_type(library) if library and launcher == "srun" else None
        given = {**site.policies.environment, **_of_the_library(context, library)}
    carried = {
        name: value for name, value in context.host.environment.items() if name not in given and name not in UNSET
    }
    return PlannedJob(
        library=library,
        launcher=launcher,
        program=program,
        mpi_type=kind,
        given=given,
        carried=carried,
        is_carried=site.policies.export != "none" and (launcher != "mpirun_rsh" or _exports(library)),
        planned=plan is not None,
        device_buffers=plan is not None and uses_device_buffers(plan),
        is_active=context.is_active,
    )


def _library(context: Context) -> Library | None:
    installation = context.installation
    if installation is None or (noted := installation.mpi) is None:
        return None
    own = Library(context.stack or "", noted[0], version=noted[1], prefix=str(installation.prefix))
    return library_for(context.site, own, None, gpus=bool(context.gpus))


def _launcher(context: Context, library: Library) -> str | None:
    with suppress(UsageError):
        return launcher_for(context.site, library, None)
    return None


def _program(library: Library, launcher: str) -> str:
    return launcher if launcher in _OF_THE_SITE else library.program(launcher)


def _of_the_library(context: Context, library: Library | None) -> dict[str, str]:
    """The site's environment and tuning of its library."""
    if library is None or library.name not in context.site.mpi:
        return {}
    tuning = site_tuning(context.site, library, gpus=bool(context.gpus))
    return {**library.environment, **{name: str(value) for name, value in tuning.items()}}


def _exports(library: Library | None) -> bool:
    """Whether the site makes mpirun_rsh export the environment, which is not its default."""
    return any(word in _EXPORTING for word in library.launcher_arguments.get("mpirun_rsh", ())) if library else False


def uses_device_buffers(plan: Plan) -> bool:
    """Whether any step passes arrays in GPU memory to MPI."""
    on_gpus = plan.device == "gpu"
    return any(_on_device({**plan.parameters, **step.point}, on_gpus=on_gpus) for step in plan.steps)


def _on_device(parameters: Mapping[str, Value], *, on_gpus: bool) -> bool:
    """By the parameters of the shipped workloads: OMB's buffers, training's direct ones, Dask over MPI."""
    of_dask = on_gpus and parameters.get("protocol") == "mpi"
    direct = on_gpus and parameters.get("gpu_buffers") == "direct"
    placed = on_gpus and "D" in str(parameters.get("places", "")).split("-")
    return of_dask or direct or placed or parameters.get("buffer") in _GPU_ARRAYS
