"""Building what a stack compiles: each build taken from the cache, or made there, then installed into the prefix."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import documents, paths, process
from hidl_cli.errors import BuildFailed, MissingPrecondition, ProcessFailed
from hidl_cli.site import machine as cgroups
from hidl_cli.stack.builds import fetch
from hidl_cli.stack.builds.contract import Workplace
from hidl_cli.stack.builds.kinds import KINDS
from hidl_cli.stack.builds.planned import PlannedBuild
from hidl_cli.stack.installation import Installation, held
from hidl_cli.stack.order import InstallStep, log_command

if TYPE_CHECKING:
    from hidl_cli.stack.builds.contract import Packager
    from hidl_cli.stack.builds.planned import PlannedBuild
    from hidl_cli.stack.order import Progress
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.target import Target


_ERRORS = re.compile(
    r"""
      .+:\d+(:\d+)?:\ (fatal\ )?error:\ .+                        # GCC, Clang
    | .*\b(fatal\ error|internal\ compiler\ error):\ .+           # GCC's driver, killed for want of memory
    | \S*ld(\.\w+)?:\ (?!warning).*(cannot\ find|undefined).*     # the linker
    | .*undefined\ reference\ to\ .+
    | CMake\ Error\b.*
    | configure:\ error:\ .+
    | (\w+\.)*\w*(Error|Exception|Exit)(:\ .+)?                   # Python
    | error:\ .+                                                  # setuptools
    | .*No\ space\ left\ on\ device.*
    | make(\[\d+\])?:\ \*\*\*\ (?!\[).+                           # no rule to make a target
    """,
    re.VERBOSE,
)
_CMAKE_ERROR = re.compile(r"CMake Error\b.*:$")


def first_error(lines: Iterable[str]) -> str | None:
    """The first line with an error, CMake's with what stands below; None where there is none."""
    waiting: str | None = None
    for line in (line.strip() for line in lines):
        if waiting is not None:
            if line:
                return f"{waiting} {line}"
        elif _ERRORS.fullmatch(line):
            if not _CMAKE_ERROR.fullmatch(line):
                return line
            waiting = line
    return waiting


# The machine that compiles: who its compilers are, what it shows to a build, and how much it can do at once.


#: Variables of the user that decide what comes of a build; they are part of its identity.
DECIDING = (
    "CC", "CXX", "FC", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "FFLAGS", "LDFLAGS",
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "PKG_CONFIG_PATH",
)  # fmt: skip
#: What a build sees of the user's environment besides: no other setting can change what comes of it unnoticed.
SHOWN = ("HOME", "USER", "LOGNAME", "PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL", "XDG_CACHE_HOME")

_GIB = 2**30


def identity(environ: Mapping[str, str]) -> dict[str, str]:
    """The compilers' versions, the C library, the processor's kind, and the variables that decide; for comparisons."""
    found = {"machine": platform.machine(), "libc": "-".join(platform.libc_ver())}
    for role, variable in (("cc", "CC"), ("c++", "CXX")):
        compiler = shutil.which(environ.get(variable) or role, path=environ.get("PATH"))
        found[role] = _version(compiler) if compiler else "none"
    return found | {name: environ[name] for name in DECIDING if name in environ}


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a build sees of ``environ``."""
    return {name: environ[name] for name in (*SHOWN, *DECIDING) if name in environ}


def require(programs: Sequence[str], what: str, environ: Mapping[str, str]) -> None:
    """Raise ``MissingPrecondition`` where one of the programs is not on PATH."""
    lacking = [program for program in programs if shutil.which(program, path=environ.get("PATH")) is None]
    if lacking:
        raise MissingPrecondition(
            f"{what} is compiled on this machine, and {', '.join(lacking)} is not on PATH",
            hint="install a compiler (Debian: apt install g++ make; elsewhere: load the module of a GCC)",
        )


def build_jobs(memory_per_job_gib: float) -> int:
    """How many compilers may run at once: as many as there are cores, and as the free memory holds; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroups.cpu_quota(Path("/"))
    free = _free_memory()
    limits = [cores, max(1, round(quota))] if quota else [cores]
    limits += [int(free / (memory_per_job_gib * _GIB))] if free is not None else []
    return max(1, min(limits))


def _free_memory() -> int | None:
    """Bytes that new processes can have; None where the system does not say."""
    lines = cgroups.read(Path("/proc/meminfo")).splitlines()
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    limits = [*available, *([limit] if (limit := cgroups.memory_limit(Path("/"))) else [])]
    return min(limits, default=None)


def _version(compiler: str) -> str:
    try:
        return process.run([compiler, "--version"], timeout=60).stdout.partition("\n")[0]
    except ProcessFailed as failure:
        raise MissingPrecondition(
            f"the compiler {compiler} does not work: {failure.output.strip()}", hint="correct CC and CXX, or unset them"
        ) from failure


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
        jobs = build_jobs(build.recipe.memory_per_job_gib)
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
        require(build.recipe.programs, f"{build.name} {build.version}", os.environ)
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
        jobs = build_jobs(build.recipe.memory_per_job_gib)
        patched = f" and apply {_counted(len(build.patches), 'patch', 'patches')}" if build.patches else ""
        with self.progress.step(f"unpack {what}{patched}"):
            tree = fetch.unpack(source, work / "source")
            for patch in build.patches:
                fetch.apply(patch.file, tree)
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
    compilers = identity(os.environ) if plan.builds else {}
    return [
        (
            build,
            slot(
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
            error = first_error(lines)
        said = error or "\n".join(failure.output.strip().splitlines()[-5:])
        hint = f"nothing was published; the whole output is in {log}"
        if error and "Killed" in error:
            hint = f"the machine has too little memory for it; {hint}"
        raise BuildFailed(f"{build.name} {build.version} could not be built: {said}", hint=hint) from failure


def _environment(place: Workplace) -> dict[str, str]:
    """What the build's commands see: the activated stack, its tools before it, and the recipe's variables."""
    shown = Installation.at(place.prefix).environment(environment(os.environ))
    jobs, tools = str(place.jobs), place.tools
    parallel = {"MAKEFLAGS": f"-j{jobs}", "CMAKE_BUILD_PARALLEL_LEVEL": jobs, "MAX_JOBS": jobs}
    found = {"PATH": os.pathsep.join((str(tools / "bin"), shown["PATH"])), "PYTHONPATH": str(tools), "NO_COLOR": "1"}
    own = {name: place.fill(value) for name, value in place.recipe.environment.items()}
    return {**shown, **found, **parallel, **own}


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


# What was built before: ``<cache>/builds/<key>/``, found by the hash of all that it was built from.


_INPUTS = "inputs.json"
_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Slot:
    """The place of one product. ``inputs`` is all that it is built from; ``directory`` is there once it is whole."""

    inputs: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The SHA-256 of the inputs, shortened."""
        return hashlib.sha256(json.dumps(self.inputs, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def directory(self) -> Path:
        """The product's directory."""
        return _root() / self.key

    @property
    def filled(self) -> bool:
        """Is the product there?"""
        return (self.directory / _INPUTS).is_file()

    @contextmanager
    def workplace(self, on_wait: Callable[[str], None]) -> Iterator[Path | None]:
        """A directory to build in, which nobody else uses; None where the product is there already.

        What an interrupted build left in it is gone. The product goes to its ``product``; it is kept where the block
        ends without an exception.
        """
        work = _root() / f".{self.key}"
        with held(_root() / ".locks" / self.key, on_wait):
            if self.filled:
                os.utime(self.directory / _INPUTS)  # see ``last_used``
                yield None
                return
            shutil.rmtree(work, ignore_errors=True)
            (work / "product").mkdir(parents=True)
            try:
                yield work
                documents.write_json(work / "product" / _INPUTS, self.inputs)
                shutil.rmtree(self.directory, ignore_errors=True)
                (work / "product").replace(self.directory)
            finally:
                shutil.rmtree(work, ignore_errors=True)


def slot(build: PlannedBuild, target: Target, machine: Mapping[str, str], *, prefix: Path | None = None) -> Slot:
    """The place of this build's product, on a machine with these compilers; ``prefix``: the only one it serves."""
    where = {"python": target.python, "platform": target.platform, "machine": dict(machine)}
    return Slot({**build.inputs, **where, **({"prefix": str(prefix)} if prefix else {})})


def products() -> list[Path]:
    """The directories of all products."""
    found = sorted(each for each in _root().glob("*") if _KEY.fullmatch(each.name))
    return [each for each in found if each.is_dir() and not each.is_symlink()]


def last_used(product: Path) -> float:
    """When it was made or last used, in seconds since the epoch. Raises ``FileNotFoundError``."""
    whole = product / _INPUTS
    return (whole if whole.is_file() else product).stat().st_mtime


def remove(product: Path, on_wait: Callable[[str], None]) -> None:
    """Remove a product of ``products``; waits for processes that build or copy it."""
    with held(_root() / ".locks" / product.name, on_wait):
        shutil.rmtree(product)


def _root() -> Path:
    return paths.user_cache() / "builds"
