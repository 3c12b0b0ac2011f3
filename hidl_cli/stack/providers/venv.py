"""The provider ``wheels``: a virtual environment filled from a lock, and what is compiled against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli import documents
from hidl_cli.errors import MissingPrecondition
from hidl_cli.stack import installation, lock, own_wheel
from hidl_cli.stack.builds import planned
from hidl_cli.stack.lock import Choice, Lock, Locked
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers.contract import Preview
from hidl_cli.stack.target import TORCH_BACKENDS, accelerator_of, has_builds

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.order import Order, Progress
    from hidl_cli.stack.providers.wheels import Wheels
    from hidl_cli.stack.target import Target


class FromWheels:
    """See ``Provider``. ``uv`` is asked for only where something is installed."""

    resolves_in_previews = False

    def __init__(self, site: Site, mirror: Path | None = None, cache: Path | None = None) -> None:
        """``cache``: uv's, in the place of the user's."""
        self.site = site
        self.mirror = mirror
        self.cache = cache

    @cached_property
    def uv(self) -> Wheels:
        """Who installs wheels: from what was brought along first."""
        from hidl_cli.stack.providers.wheels import Wheels  # "nothing to do" does not need uv

        found = Wheels.for_site(self.site, self.mirror)
        return replace(found, environ={**found.environ, "UV_CACHE_DIR": str(self.cache)}) if self.cache else found

    @property
    def notes(self) -> tuple[str, ...]:
        """See ``Provider``."""
        return self.uv.notes

    def choose(self, order: Order, target: Target) -> Choice:
        """See ``Provider``."""
        return lock.choose(order.stack, target, places(order))

    def resolve(self, order: Order, target: Target, progress: Progress) -> Lock:
        """See ``Provider``."""
        with progress.step(f"lock stack {order.stack.name}"):
            new = self.uv.resolve(order.stack, target, offline=order.offline)
        if target.accelerator != "cpu" and (new.version("torch") or "").endswith("+cpu"):
            progress.say("the site's nodes have GPUs, and torch is its CPU build, as UV_TORCH_BACKEND says")
        if new.gpu:
            progress.say(f"newer releases have no kernels for {new.gpu}: {new.filename} holds the last that have")
        return new

    def plan(self, order: Order, target: Target, chosen: Locked, file: Path) -> InstallPlan:
        """See ``Provider``."""
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
            builds=planned.plan(stack.builds, chosen.wheels, order.root, order.sources),
            advisories=(*(advisory.model_dump() for advisory in stack.advisories), *_advisories(order, target)),
            offline=order.offline,
            mpi=stack.mpi,
            mpi_version=chosen.version(stack.mpi),
        )

    def preview(self, plan: InstallPlan) -> Preview:
        """See ``Provider``."""
        from hidl_cli.stack.builds import building  # "nothing to do" builds nothing

        return Preview(self.uv.steps(plan), tuple(building.preview(plan)))

    def fill(self, plan: InstallPlan, log: Path, progress: Progress, meanwhile: Callable[[], object]) -> None:
        """See ``Provider``."""
        from hidl_cli.stack.builds import building  # "nothing to do" builds nothing

        if plan.offline:
            refuse_what_is_missing(plan, self.uv, progress)
        builder = building.Builder(plan, self.uv, log, progress)
        prepared = builder.prepare()
        begin(plan)
        install_wheels(plan, self.uv, log, progress, meanwhile=meanwhile)
        _complete_mpich(plan)
        for build in prepared:
            builder.install(build)


def _advisories(order: Order, target: Target) -> list[dict[str, str | None]]:
    """What keeps the installation, or the stack, from what the site's nodes are."""
    texts = {
        "other-machine": _other_machine(order, target),
        "no-gpu-build": _without_gpus(order, target),
        "other-partition": _other_partition(order, target),
    }
    return [{"id": name, "text": text, "url": None} for name, text in texts.items() if text]


def _other_machine(order: Order, target: Target) -> str | None:
    """The site's nodes are of another architecture than the target."""
    node = order.site.node_of_stacks()
    if node.arch in (None, target.machine):
        return None
    nodes = f"{node.arch} ({node.cpu})" if node.cpu else node.arch
    return f"the nodes of {order.site.name} are {nodes}, and what is installed here is for {target.machine} alone"


def _without_gpus(order: Order, target: Target) -> str | None:
    """A stack is its build for processors, although the site's nodes have GPUs."""
    node = order.site.node_of_stacks()
    accelerator = accelerator_of(node)
    if "gpu" not in order.stack.devices or target.accelerator == accelerator:
        return None
    gpus = f"{node.gpu_model}, {target.machine}"
    text = f"PyPI has no build for the site's GPUs ({gpus}), so this one computes on processors"
    if not order.stack.has_gpu_variants:
        text += f"; UV_TORCH_BACKEND={TORCH_BACKENDS[accelerator]} takes one from PyTorch's own index"
    return text


def _other_partition(order: Order, target: Target) -> str | None:
    """Another partition than the default one has GPUs, for which there is a build."""
    site, stack = order.site, order.stack
    partition = site.partition_with("gpu")
    if partition is None or site.install.device or site.node_type().gpus != 0 or "gpu" not in stack.devices:
        return None
    if not has_builds(site, stack, accelerator_of(site.node_type(partition)), target.machine):
        return None
    return (
        f"partition {partition} has GPUs: --device gpu, or `install: {{device: gpu}}` in the site's file, installs the "
        "build for them, which serves processors too"
    )


def places(order: Order) -> tuple[Path, ...]:
    """Where locks lie for an order: what was brought along comes first."""
    brought = (order.mirror / "locks",) if order.mirror else ()
    return (*brought, *lock.directories(*installation.behind(order.site, order.root)))


def begin(plan: InstallPlan) -> None:
    """An empty prefix with the lock of its wheels, by which it is known as hidl's."""
    installation.discard(plan.prefix)
    plan.prefix.mkdir(parents=True)
    documents.write_text(plan.lock_file, plan.lock.wheels.text())


def install_wheels(
    plan: InstallPlan,
    uv: Wheels,
    log: Path,
    progress: Progress,
    *,
    meanwhile: Callable[[], object] | None = None,
    interpreter: Path | None = None,
) -> None:
    """Make the virtual environment, and install the wheels of the lock and hidl's own into it."""
    *first, last = uv.steps(plan, interpreter)
    for step in first:
        with progress.step(step.title, log):
            uv.run(step, log)
    with progress.step(last.title, log):
        uv.run(last, log, meanwhile=meanwhile)


def _complete_mpich(plan: InstallPlan) -> None:
    """The name that MPICH installs beside ``libmpi.so``, and that its wheel lacks: Spack, for one, looks for it."""
    library, name = plan.prefix / "lib" / "libmpi.so.12", plan.prefix / "lib" / "libmpich.so"
    if plan.mpi == "mpich" and library.is_file() and not name.exists():
        name.symlink_to(library.name)


def refuse_what_is_missing(plan: InstallPlan, uv: Wheels, progress: Progress) -> None:
    """Raise ``MissingPrecondition`` with the name of each wheel that cannot be had offline."""
    with progress.step("look for the wheels offline"):
        missing = uv.missing(plan)
    if missing:
        raise MissingPrecondition(
            f"stack {plan.stack} cannot be installed offline; neither uv's cache nor a wheelhouse holds: "
            + ", ".join(missing),
            hint="install it once with a network, bring what is missing (hidl stack fetch, --mirror), or name a "
            "directory of wheels with PIP_FIND_LINKS",
        )
