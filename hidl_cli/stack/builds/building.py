"""Building what a stack compiles: each build taken from the cache, or made there, then installed into the prefix."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import process
from hidl_cli.errors import BuildFailed, MissingPrecondition, ProcessFailed
from hidl_cli.stack.builds import archives, cache, diagnosis, fetch, machine, patches
from hidl_cli.stack.builds.cache import Slot
from hidl_cli.stack.builds.contract import Workplace
from hidl_cli.stack.builds.kinds import KINDS
from hidl_cli.stack.builds.planned import PlannedBuild
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.steps import InstallStep, log_command

if TYPE_CHECKING:
    from hidl_cli.stack.builds.contract import Packager
    from hidl_cli.stack.order import Progress
    from hidl_cli.stack.plan import InstallPlan

# uv ends without ending what it started. This shell leads the process group that hidl starts, and takes all of it with
# it: no compiler goes on when hidl is killed.
GUARD = ("sh", "-c", 'trap "kill -KILL 0" TERM; "$@" & wait "$!"', "hidl-build")


@dataclass(frozen=True)
class Prepared:
    """A build that can begin: ``source`` is its archive, None where the product is in the cache already."""

    build: PlannedBuild
    slot: Slot
    source: Path | None


def preview(plan: InstallPlan) -> list[dict[str, Any]]:
    """What would be done for each build, as part of a JSON document; nothing is touched."""
    documents = []
    for build, slot in _slots(plan):
        jobs = machine.jobs(build.recipe.memory_per_job_gib)
        place = _workplace(build, Path("SOURCE"), Path("PRODUCT"), plan.prefix, tools=Path("TOOLS"), jobs=jobs)
        commands = () if slot.filled else KINDS[build.recipe.kind].commands(place)
        documents.append(
            {
                "name": build.name,
                "version": build.version,
                "action": "take from the cache" if slot.filled else f"build with {_counted(jobs, 'job')}",
                "cache": str(slot.directory),
                "commands": [list(step.argv) for step in commands],
            }
        )
    return documents


@dataclass(frozen=True)
class Builder:
    """Makes and installs the builds of one plan; what is said goes to ``log``, a build's own output beside it."""

    plan: InstallPlan
    provider: Packager
    log: Path
    progress: Progress

    def prepare(self) -> tuple[Prepared, ...]:
        """Get everything that the plan's builds need, before anything is installed.

        Raises ``MissingPrecondition`` where a compiler, or a source that cannot be fetched, is not there, and
        ``BuildFailed`` where a source has another content than its recipe says.
        """
        for build in self.plan.builds:
            fetch.keep(build, self.plan.root)
        return tuple(
            Prepared(build, slot, None if slot.filled else self._source(build)) for build, slot in _slots(self.plan)
        )

    def install(self, prepared: Prepared) -> None:
        """Make the product, unless it is in the cache, and install it into the plan's prefix, whose wheels are in.

        Raises ``BuildFailed`` with the first real error of the log.
        """
        build = prepared.build
        with prepared.slot.workplace(self.progress.say) as work:
            if work is not None:
                self._make(build, prepared.source or self._source(build), work)
        origin = " from the cache of builds" if work is None else ""
        with self.progress.step(f"install {build.name} {build.version}{origin}", self.log):
            for step in KINDS[build.recipe.kind].installation(self.plan, self.provider, prepared.slot.directory):
                self.provider.run(step, self.log)

    def _source(self, build: PlannedBuild) -> Path:
        """The archive of a build that must be made."""
        machine.require(build.recipe.programs, f"{build.name} {build.version}", os.environ)
        source = fetch.present(build, self.plan.root)
        if source is None and self.plan.offline:
            raise MissingPrecondition(
                f"stack {self.plan.stack} cannot be installed offline; neither a build of {build.name} {build.version} "
                f"nor its source {build.recipe.source.file} is here",
                hint=f"install it once with a network, or put the source into {self.plan.root / 'sources'}",
            )
        if source is None:
            with self.progress.step(f"fetch {build.recipe.source.file}", self.log):
                source = fetch.fetch(build, self.plan, self.provider, self.log)
        return source

    def _make(self, build: PlannedBuild, source: Path, work: Path) -> None:
        """Unpack, patch and build in ``work``; the product goes to its ``product``."""
        tools, what = work / "tools", f"{build.name} {build.version}"
        tools.mkdir()
        jobs = machine.jobs(build.recipe.memory_per_job_gib)
        patched = f" and apply {_counted(len(build.patches), 'patch', 'patches')}" if build.patches else ""
        with self.progress.step(f"unpack {what}{patched}"):
            tree = archives.unpack(source, work / "source")
            for patch in build.patches:
                patches.apply(patch.file, tree)
        if build.recipe.requires:
            with self.progress.step(f"install what builds {build.name}", self.log):
                self.provider.run(self.provider.build_tools(self.plan, build.recipe, tools), self.log)
        log = self.log.with_name(f"{self.log.stem}-{build.name}.log")
        place = _workplace(build, tree, work / "product", self.plan.prefix, tools=tools, jobs=jobs)
        environment = _environment(place)
        with self.progress.step(f"build {what} with {_counted(jobs, 'job')}", log):
            for step in KINDS[build.recipe.kind].commands(place):
                _run(step, build, tree, environment, log)


def _slots(plan: InstallPlan) -> list[tuple[PlannedBuild, Slot]]:
    compilers = machine.identity(os.environ) if plan.builds else {}
    return [
        (
            build,
            cache.slot(
                build,
                plan.target,
                compilers,
                prefix=None if KINDS[build.recipe.kind].relocatable else plan.prefix,
            ),
        )
        for build in plan.builds
    ]


def _workplace(build: PlannedBuild, source: Path, product: Path, prefix: Path, *, tools: Path, jobs: int) -> Workplace:
    objects = tuple(each.file for each in build.objects)
    return Workplace(build.recipe, source, product, prefix, tools, jobs, objects)


def _run(step: InstallStep, build: PlannedBuild, tree: Path, environment: Mapping[str, str], log: Path) -> None:
    log_command(log, step.argv)
    try:
        process.run((*GUARD, *step.argv), cwd=tree, env={**environment, **step.variables}, log=log)
    except ProcessFailed as failure:
        with log.open(encoding="utf-8", errors="replace") as lines:
            error = diagnosis.first_error(lines)
        said = error or "\n".join(failure.output.strip().splitlines()[-5:])
        hint = f"nothing was published; the whole output is in {log}"
        if error and "Killed" in error:
            hint = f"the machine has too little memory for it; {hint}"
        raise BuildFailed(f"{build.name} {build.version} could not be built: {said}", hint=hint) from failure


def _environment(place: Workplace) -> dict[str, str]:
    """What the build's commands see: the activated stack, its tools before it, and the recipe's variables."""
    shown = Installation.at(place.prefix).environment(machine.environment(os.environ))
    jobs, tools = str(place.jobs), place.tools
    parallel = {"MAKEFLAGS": f"-j{jobs}", "CMAKE_BUILD_PARALLEL_LEVEL": jobs, "MAX_JOBS": jobs}
    found = {"PATH": os.pathsep.join((str(tools / "bin"), shown["PATH"])), "PYTHONPATH": str(tools), "NO_COLOR": "1"}
    own = {name: place.fill(value) for name, value in place.recipe.environment.items()}
    return {**shown, **found, **parallel, **own}


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
