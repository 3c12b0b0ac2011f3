"""Build a stack's software in a cache, and install the results (the *products*) into the prefix."""

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
from hidl_cli.stack.builds.plan import KINDS, BuildContext, Packager, PlannedBuild
from hidl_cli.stack.installation import Installation, hold_lock
from hidl_cli.stack.order import InstallStep, Progress, log_command

if TYPE_CHECKING:
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.target import Target


_ERRORS = re.compile(
    r"""
      .+:\d+(:\d+)?:\ (fatal\ )?error:\ .+                        # GCC, Clang
    | .*\b(fatal\ error|internal\ compiler\ error):\ .+           # GCC's driver, out of memory
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
    """Return the first line with an error, or None. A CMake error is joined with the line below it."""
    cmake_error: str | None = None
    for line in (line.strip() for line in lines):
        if cmake_error is not None:
            if line:
                return f"{cmake_error} {line}"
        elif _ERRORS.fullmatch(line):
            if not _CMAKE_ERROR.fullmatch(line):
                return line
            cmake_error = line
    return cmake_error


# The build machine: its compilers, the build environment and the number of parallel jobs.


#: Environment variables that affect the product of a build, and are therefore part of its cache key.
DECIDING = (
    "CC", "CXX", "FC", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "FFLAGS", "LDFLAGS",
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "PKG_CONFIG_PATH",
)  # fmt: skip
#: Other variables that are passed to builds. All remaining variables are removed, because they could affect the product
#: unnoticed.
SHOWN = ("HOME", "USER", "LOGNAME", "PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL", "XDG_CACHE_HOME")

_GIB = 2**30


def identity(environ: Mapping[str, str]) -> dict[str, str]:
    """Identify the machine by its compilers, C library, architecture and the variables in ``DECIDING``."""
    found = {"machine": platform.machine(), "libc": "-".join(platform.libc_ver())}
    for role, variable in (("cc", "CC"), ("c++", "CXX")):
        compiler = shutil.which(environ.get(variable) or role, path=environ.get("PATH"))
        found[role] = _version(compiler) if compiler else "none"
    return found | {name: environ[name] for name in DECIDING if name in environ}


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environ`` that are passed to builds."""
    return {name: environ[name] for name in (*SHOWN, *DECIDING) if name in environ}


def require(programs: Sequence[str], what: str, environ: Mapping[str, str]) -> None:
    """Raise ``MissingPrecondition`` if one of the programs is not on PATH."""
    lacking = [program for program in programs if shutil.which(program, path=environ.get("PATH")) is None]
    if lacking:
        raise MissingPrecondition(
            f"building {what} requires {', '.join(lacking)}, which was not found on PATH",
            hint="install a compiler (Debian: apt install g++ make) or load a compiler module",
        )


def build_jobs(memory_per_job_gib: float) -> int:
    """Return the number of parallel compile jobs, limited by the number of cores and the free memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroups.cpu_quota(Path("/"))
    free = _free_memory()
    limits = [cores, max(1, round(quota))] if quota else [cores]
    limits += [int(free / (memory_per_job_gib * _GIB))] if free is not None else []
    return max(1, min(limits))


def _free_memory() -> int | None:
    """Return the memory available to new processes in bytes, or None if unknown."""
    lines = cgroups.read(Path("/proc/meminfo")).splitlines()
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    limits = [*available, *([limit] if (limit := cgroups.memory_limit(Path("/"))) else [])]
    return min(limits, default=None)


def _version(compiler: str) -> str:
    try:
        return process.run([compiler, "--version"], timeout=60).stdout.partition("\n")[0]
    except ProcessFailed as failure:
        raise MissingPrecondition(
            f"the compiler {compiler} does not work: {failure.output.strip()}", hint="fix CC and CXX, or unset them"
        ) from failure


# uv exits without stopping its child processes. This shell leads their process group and kills the group, so that no
# compiler keeps running after hidl has been killed.
GUARD = ("sh", "-c", 'trap "kill -KILL 0" TERM; "$@" & wait "$!"', "hidl-build")


@dataclass(frozen=True)
class Prepared:
    """A build that is ready to start. ``source`` is its source archive, or None if the product is cached."""

    build: PlannedBuild
    slot: Slot
    source: Path | None


def preview(plan: InstallPlan) -> list[dict[str, Any]]:
    """Describe what would be done for each build, as plain data, without changing anything."""
    documents = []
    for build, slot in _slots(plan):
        jobs = build_jobs(build.recipe.memory_per_job_gib)
        place = _build_context(build, Path("SOURCE"), Path("PRODUCT"), plan.prefix, tools=Path("TOOLS"), jobs=jobs)
        commands = () if slot.filled else KINDS[build.recipe.kind].commands(place)
        documents.append(
            {
                "name": build.name,
                "version": build.version,
                "action": "take from the cache" if slot.filled else f"build with {_count(jobs, 'job')}",
                "cache": str(slot.directory),
                "commands": [list(step.argv) for step in commands],
            }
        )
    return documents


@dataclass(frozen=True)
class Builder:
    """Runs a plan's builds. Each build has its own log file beside ``log``."""

    plan: InstallPlan
    provider: Packager
    log: Path
    progress: Progress

    def prepare(self) -> tuple[Prepared, ...]:
        """Fetch the sources of all builds before anything is installed.

        Raises ``MissingPrecondition`` if a compiler or a source is missing, and ``BuildFailed`` if the SHA-256 of a
        source does not match the recipe.
        """
        for build in self.plan.builds:
            fetch.keep_archive(build, self.plan.root)
        return tuple(
            Prepared(build, slot, None if slot.filled else self._source(build)) for build, slot in _slots(self.plan)
        )

    def install(self, prepared: Prepared) -> None:
        """Build the product unless it is cached, and install it into the prefix, after the wheels.

        Raises ``BuildFailed`` with the first error in the log.
        """
        build = prepared.build
        with prepared.slot.build_directory(self.progress.say) as work:
            if work is not None:
                self._make(build, prepared.source or self._source(build), work)
        origin = " from the build cache" if work is None else ""
        with self.progress.step(f"install {build.name} {build.version}{origin}", self.log):
            for step in KINDS[build.recipe.kind].installation(self.plan, self.provider, prepared.slot.directory):
                self.provider.run(step, self.log)

    def _source(self, build: PlannedBuild) -> Path:
        """Return the source archive of a build that is not cached."""
        require(build.recipe.programs, f"{build.name} {build.version}", os.environ)
        source = fetch.find_archive(build, self.plan.root)
        if source is None and self.plan.offline:
            raise MissingPrecondition(
                f"stack {self.plan.stack} cannot be installed offline: neither a build of {build.name} {build.version} "
                f"nor its source {build.recipe.source.file} was found",
                hint=f"install it once with network access, or put the source into {self.plan.root / 'sources'}",
            )
        if source is None:
            with self.progress.step(f"fetch {build.recipe.source.file}", self.log):
                source = fetch.fetch(build, self.plan, self.provider, self.log)
        return source

    def _make(self, build: PlannedBuild, source: Path, work: Path) -> None:
        """Unpack, patch and build the source in ``work``. The product is written to the subdirectory ``product``."""
        tools, what = work / "tools", f"{build.name} {build.version}"
        tools.mkdir()
        jobs = build_jobs(build.recipe.memory_per_job_gib)
        patched = f" and apply {_count(len(build.patches), 'patch', 'patches')}" if build.patches else ""
        with self.progress.step(f"unpack {what}{patched}"):
            tree = fetch.unpack(source, work / "source")
            for patch in build.patches:
                fetch.apply(patch.file, tree)
        if build.recipe.requires:
            with self.progress.step(f"install the build requirements of {build.name}", self.log):
                self.provider.run(self.provider.build_tools(self.plan, build.recipe, tools), self.log)
        log = self.log.with_name(f"{self.log.stem}-{build.name}.log")
        place = _build_context(build, tree, work / "product", self.plan.prefix, tools=tools, jobs=jobs)
        environment = _environment(place)
        with self.progress.step(f"build {what} with {_count(jobs, 'job')}", log):
            for step in KINDS[build.recipe.kind].commands(place):
                _run(step, build, tree, environment, log)


def _slots(plan: InstallPlan) -> list[tuple[PlannedBuild, Slot]]:
    compilers = identity(os.environ) if plan.builds else {}
    return [
        (build, slot(build, plan.target, compilers, None if KINDS[build.recipe.kind].relocatable else plan.prefix))
        for build in plan.builds
    ]


def _build_context(
    build: PlannedBuild, source: Path, product: Path, prefix: Path, *, tools: Path, jobs: int
) -> BuildContext:
    objects = tuple(each.file for each in build.objects)
    return BuildContext(build.recipe, source, product, prefix, tools, jobs, objects)


def _run(step: InstallStep, build: PlannedBuild, tree: Path, environment: Mapping[str, str], log: Path) -> None:
    log_command(log, step.argv)
    try:
        process.run((*GUARD, *step.argv), cwd=tree, env={**environment, **step.variables}, log=log)
    except ProcessFailed as failure:
        with log.open(encoding="utf-8", errors="replace") as lines:
            error = first_error(lines)
        message = error or "\n".join(failure.output.strip().splitlines()[-5:])
        hint = f"nothing was published; the full output is in {log}"
        if error and "Killed" in error:
            hint = f"the machine ran out of memory; {hint}"
        raise BuildFailed(f"failed to build {build.name} {build.version}: {message}", hint=hint) from failure


def _environment(place: BuildContext) -> dict[str, str]:
    """Return the environment for the commands: the activated stack, the build tools and the recipe's variables."""
    shown = Installation.at(place.prefix).environment(environment(os.environ))
    jobs, tools = str(place.jobs), place.tools
    parallel = {"MAKEFLAGS": f"-j{jobs}", "CMAKE_BUILD_PARALLEL_LEVEL": jobs, "MAX_JOBS": jobs}
    found = {"PATH": os.pathsep.join((str(tools / "bin"), shown["PATH"])), "PYTHONPATH": str(tools), "NO_COLOR": "1"}
    own = {name: place.fill(value) for name, value in place.recipe.environment.items()}
    return {**shown, **found, **parallel, **own}


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


# The build cache: ``<cache>/builds/<key>/``, where the key is a hash of all inputs.


_INPUTS = "inputs.json"
_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Slot:
    """A build cache slot for one product; ``directory`` exists once the product is complete."""

    inputs: Mapping[str, Any]

    @property
    def key(self) -> str:
        """A shortened SHA-256 of the inputs."""
        return hashlib.sha256(json.dumps(self.inputs, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def directory(self) -> Path:
        """The product's directory."""
        return _root() / self.key

    @property
    def filled(self) -> bool:
        """Return True if the product is in the cache."""
        return (self.directory / _INPUTS).is_file()

    @contextmanager
    def build_directory(self, on_wait: Callable[[str], None]) -> Iterator[Path | None]:
        """Yield an empty directory to build in, locked for this process.

        Yields None if the product is already in the cache. If the block ends without an exception, the subdirectory
        ``product`` is moved to the cache.
        """
        work = _root() / f".{self.key}"
        with hold_lock(_root() / ".locks" / self.key, on_wait):
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


def slot(build: PlannedBuild, target: Target, machine: Mapping[str, str], prefix: Path | None = None) -> Slot:
    """Return the build cache slot for a build on a machine whose compilers are described in ``machine``.

    If ``prefix`` is given, the build can only be used under that prefix.
    """
    where = {"python": target.python, "platform": target.platform, "machine": dict(machine)}
    return Slot({**build.inputs, **where, **({"prefix": str(prefix)} if prefix else {})})


def products() -> list[Path]:
    """Return the directories of all cached products."""
    found = sorted(each for each in _root().glob("*") if _KEY.fullmatch(each.name))
    return [each for each in found if each.is_dir() and not each.is_symlink()]


def last_used(product: Path) -> float:
    """Return the time when the product was created or last used, in seconds since the epoch.

    Raises ``FileNotFoundError`` if the product does not exist.
    """
    whole = product / _INPUTS
    return (whole if whole.is_file() else product).stat().st_mtime


def remove(product: Path, on_wait: Callable[[str], None]) -> None:
    """Remove a product from the cache, waiting for processes that build or copy it."""
    with hold_lock(_root() / ".locks" / product.name, on_wait):
        shutil.rmtree(product)


def _root() -> Path:
    return paths.user_cache() / "builds"
