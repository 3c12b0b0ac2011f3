"""The provider ``wheels``, which installs a lockfile's packages and the stack's builds in a virtual environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli import documents
from hidl_cli.errors import BuildFailed, MissingPrecondition
from hidl_cli.stack import installation, lock, own_wheel
from hidl_cli.stack.builds.plan import plan as plan_builds
from hidl_cli.stack.lock import Choice, Lock, Locked
from hidl_cli.stack.plan import InstallPlan, StackSources
from hidl_cli.stack.providers.contract import Preview
from hidl_cli.stack.schema import name_of
from hidl_cli.stack.target import TORCH_BACKENDS, Target, accelerator_of, has_builds

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.order import Order, Progress
    from hidl_cli.stack.providers.wheels import WheelInstaller


class FromWheels:
    """Installs wheels with uv, which is only loaded when something is resolved or installed."""

    resolves_in_previews = False

    def __init__(self, site: Site, mirror: Path | None = None, cache: Path | None = None) -> None:
        """Initialize the provider. If ``cache`` is given, it is used instead of the user's uv cache."""
        self.site = site
        self.mirror = mirror
        self.cache = cache

    @cached_property
    def uv(self) -> WheelInstaller:
        """The wheel installer, which prefers the mirror's wheels."""
        from hidl_cli.stack.providers.wheels import WheelInstaller  # uv is not needed if nothing is installed

        found = WheelInstaller.for_site(self.site, self.mirror)
        return replace(found, environ={**found.environ, "UV_CACHE_DIR": str(self.cache)}) if self.cache else found

    @property
    def notes(self) -> tuple[str, ...]:
        return self.uv.notes

    def choose(self, order: Order, target: Target) -> Choice:
        return lock.choose(order.stack, target, lockfile_directories(order))

    def resolve(self, order: Order, target: Target, progress: Progress) -> Lock:
        with progress.step(f"lock stack {order.stack.name}"):
            extra = StackSources.of(order.stack.on(target.accelerator, target.machine), order.credentials)
            uv = self.uv.with_sources(extra, target, offline=order.offline)
            new = uv.resolve(order.stack, target, offline=order.offline)
        if target.accelerator != "cpu" and (new.version("torch") or "").endswith("+cpu"):
            progress.say("UV_TORCH_BACKEND selects the CPU build of torch, although the site's nodes have GPUs")
        if new.gpu:
            progress.say(
                f"newer releases have no kernels for {new.gpu}; {new.filename} has the last releases that have them"
            )
        return new

    def plan(self, order: Order, target: Target, chosen: Locked, file: Path) -> InstallPlan:
        stack = order.stack.on(target.accelerator, target.machine)
        return InstallPlan(
            site=order.site.name,
            stack=stack.name,
            title=stack.title,
            root=order.root,
            target=target,
            lock=chosen,
            lock_origin=file,
            own=(own_wheel.workloads(), *map(own_wheel.library, stack.libraries)),
            imports=tuple(stack.verify.imports),
            verify_modules=tuple(stack.verify.modules),
            builds=plan_builds(stack.builds, chosen.wheels, order.root, order.sources),
            advisories=(*(advisory.model_dump() for advisory in stack.advisories), *_advisories(order, target)),
            offline=order.offline,
            mpi=stack.mpi,
            mpi_version=chosen.version(stack.mpi),
            requirements=tuple(sorted(set(map(name_of, stack.requirements)))),
            extra=StackSources.of(stack, order.credentials),
        )

    def preview(self, plan: InstallPlan) -> Preview:
        from hidl_cli.stack.builds import build as builds  # not needed if nothing is installed

        # The wheels of direct references are not built for a preview.
        uv = self.uv.with_sources(replace(plan.extra, references=()), plan.target, offline=True)
        return Preview(uv.steps(plan), tuple(builds.preview(plan)))

    def _uv_for(self, plan: InstallPlan) -> WheelInstaller:
        return self.uv.with_sources(plan.extra, plan.target, offline=plan.offline, lock=plan.lock.wheels)

    def fill(self, plan: InstallPlan, log: Path, progress: Progress, meanwhile: Callable[[], object]) -> None:
        from hidl_cli.stack.builds import build as builds  # not needed if nothing is installed

        uv = self._uv_for(plan)
        if plan.offline:
            require_wheels(plan, uv, progress)
        builder = builds.Builder(plan, uv, log, progress)
        prepared = builder.prepare()
        create_prefix(plan)
        install_wheels(plan, uv, log, progress, meanwhile=meanwhile)
        _complete_mpich(plan)
        for build in prepared:
            builder.install(build)


def _advisories(order: Order, target: Target) -> list[dict[str, str | None]]:
    """Return advisories about mismatches between the installation and the site's nodes."""
    texts = {
        "other-machine": _other_machine(order, target),
        "no-gpu-build": _without_gpus(order, target),
        "other-partition": _other_partition(order, target),
    }
    return [{"id": name, "text": text, "url": None} for name, text in texts.items() if text]


def _other_machine(order: Order, target: Target) -> str | None:
    """Warn if the site's nodes have a different architecture than the target."""
    node = order.site.node_of_stacks()
    if node.arch in (None, target.machine):
        return None
    nodes = f"{node.arch} ({node.cpu})" if node.cpu else node.arch
    return f"the nodes of {order.site.name} are {nodes}, but this installation is only for {target.machine}"


def _without_gpus(order: Order, target: Target) -> str | None:
    """Warn if the CPU build of a stack is selected on a site with GPUs."""
    node = order.site.node_of_stacks()
    accelerator = accelerator_of(node)
    if "gpu" not in order.stack.devices or target.accelerator == accelerator:
        return None
    gpus = f"{node.gpu_model}, {target.machine}"
    text = f"PyPI has no build for the site's GPUs ({gpus}); this stack runs on CPUs"
    if not order.stack.has_gpu_variants:
        text += f"; UV_TORCH_BACKEND={TORCH_BACKENDS[accelerator]} selects a GPU build from PyTorch's index"
    return text


def _other_partition(order: Order, target: Target) -> str | None:
    """Notify the user if a partition other than the default one has GPUs that the stack supports."""
    site, stack = order.site, order.stack
    partition = site.partition_with("gpu")
    if partition is None or site.install.device or site.node_type().gpus != 0 or "gpu" not in stack.devices:
        return None
    if not has_builds(site, stack, accelerator_of(site.node_type(partition)), target.machine):
        return None
    return (
        f"partition {partition} has GPUs: --device gpu, or `install: {{device: gpu}}` in the site file, installs the "
        "GPU build, which also runs on CPUs"
    )


def lockfile_directories(order: Order) -> tuple[Path, ...]:
    """Return the lockfile directories for an installation request, starting with the one in the mirror."""
    mirror = (order.mirror / "locks",) if order.mirror else ()
    return (*mirror, *lock.directories(*installation.with_site_root(order.site, order.root)))


def create_prefix(plan: InstallPlan) -> None:
    """Create a prefix that only contains the lockfile of its wheels, which marks the prefix as created by hidl."""
    installation.discard(plan.prefix)
    plan.prefix.mkdir(parents=True)
    documents.write_text(plan.lock_file, plan.lock.wheels.text())


def install_wheels(
    plan: InstallPlan,
    uv: WheelInstaller,
    log: Path,
    progress: Progress,
    *,
    meanwhile: Callable[[], object] | None = None,
    interpreter: Path | None = None,
) -> None:
    """Create the virtual environment, and install the locked wheels and hidl's own wheels."""
    *first, last = uv.steps(plan, interpreter)
    for step in first:
        with progress.step(step.title, log):
            uv.run(step, log)
    with progress.step(last.title, log):
        uv.run(last, log, meanwhile=meanwhile)


def _complete_mpich(plan: InstallPlan) -> None:
    """Add the link ``libmpich.so``, which some software, such as Spack, looks for, but which the MPICH wheel lacks."""
    library, name = plan.prefix / "lib" / "libmpi.so.12", plan.prefix / "lib" / "libmpich.so"
    if plan.mpi == "mpich" and library.is_file() and not name.exists():
        name.symlink_to(library.name)


def require_wheels(plan: InstallPlan, uv: WheelInstaller, progress: Progress) -> None:
    """Raise ``MissingPrecondition`` listing the wheels that are not available offline."""
    with progress.step("search for the wheels offline"):
        missing = uv.missing(plan)
    if missing:
        raise MissingPrecondition(
            f"stack {plan.stack} cannot be installed offline; not found in uv's cache or a wheelhouse: "
            + ", ".join(missing),
            hint="install it once with network access, use a mirror (hidl stack fetch, --mirror), or add a directory "
            "of wheels to PIP_FIND_LINKS",
        )


#: The MPI library programs that get wrapper scripts.
MPI_PROGRAMS = (
    "mpiexec", "mpirun", "mpirun_rsh", "mpiexec.hydra", "mpiexec.mpirun_rsh", "mpispawn", "srun",
    "mpicc", "mpicxx", "mpic++", "mpiCC", "mpif77", "mpif90", "mpifort",
    "mpichversion", "mpiname", "mpivars", "ompi_info", "impi_info", "prte",
)  # fmt: skip


def write_wrappers(mpi: Path, prefix: Path) -> None:
    """Write wrapper scripts for an MPI library's programs. Raises ``BuildFailed`` if the library has no launcher.

    Scripts are used instead of links because launchers look for their helpers (``hydra_pmi_proxy``, ``mpispawn``) in
    the directory from which they were started.
    """
    shown = [name for name in MPI_PROGRAMS if os.access(mpi / "bin" / name, os.X_OK)]
    if not any(name in shown for name in ("mpiexec", "mpirun", "mpirun_rsh")):
        raise BuildFailed(
            f"no mpiexec, mpirun or mpirun_rsh found in {mpi / 'bin'}",
            hint="`prefix` of the MPI library in the site file must be the directory above bin",
        )
    for name in shown:
        _write_wrapper(prefix / "bin" / name, mpi / "bin" / name)
    if "mpiexec" not in shown:
        _write_wrapper(
            prefix / "bin" / "mpiexec", mpi / "bin" / next(n for n in ("mpirun", "mpirun_rsh") if n in shown)
        )


def link_libraries(mpi: Path, prefix: Path) -> None:
    """Link all files in the library directories of ``mpi`` into ``prefix/lib``, where mpi4py wheels look for MPI.

    All files are linked because libraries look for each other relative to their own location.
    """
    for directory in ("lib64", "lib"):
        for library in sorted((mpi / directory).glob("*")):
            link = prefix / "lib" / library.name
            if not os.path.lexists(link):
                link.symlink_to(os.path.relpath(library, link.parent))


def _write_wrapper(script: Path, program: Path) -> None:
    from hidl_cli.templates import render_script  # imports Jinja2, which is not needed if nothing is installed

    script.unlink(missing_ok=True)
    script.write_text(render_script("program.sh.j2", {"program": str(program)}), encoding="utf-8")
    script.chmod(0o755)
