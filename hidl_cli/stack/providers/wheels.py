"""Stacks from wheels, by uv: a virtual environment that is filled from a lock. What is compiled is in ``builds``."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from uv import find_uv_bin

from hidl_cli import documents, paths, process
from hidl_cli.errors import BuildFailed, HidlError, MissingPrecondition, ProcessFailed
from hidl_cli.mpi import WHEELS
from hidl_cli.redaction import redact
from hidl_cli.stack import PORTABLE_PLATFORMS, pip_settings
from hidl_cli.stack.lock import Lock, Package, requirements
from hidl_cli.stack.order import InstallStep, log_command
from hidl_cli.stack.pip_settings import Sources
from hidl_cli.stack.schema import bare, find_unserved, hashes_of, last_for_cuda, name_of
from hidl_cli.stack.target import TORCH_BACKENDS

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.schema import Build, Stack
    from hidl_cli.stack.target import Target

# Where the machine's C library is newer, locks are made for the first of these, so that they serve older machines too.
# They are the tags that both wheels and uv's --python-platform know.
_PORTABLE_GLIBC = ((2, 28), (2, 17))
# uv reads the configuration of a project that it is started in: it is started in none.
_CWD = Path("/")
_CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")
#: nvidia-nccl-cu12, cupy-cuda13x: a package's builds for versions of CUDA have their files in the same places.
_OF_A_CUDA = re.compile(r"(.+)-cu(?:da)?(\d+)x?")
#: Where NVIDIA's driver says its version: uv then chooses the build of torch that it serves.
_DRIVER = Path("/proc/driver/nvidia/version")
_BY_SPACK = "build it: --provider spack"
_NETWORK = re.compile(
    r"error sending request|dns error|Connect\)|timed out|Network connectivity is disabled|network was disabled",
    re.IGNORECASE,
)
_CHATTER = re.compile(r"(Using (CPython|Python)|Resolved|Prepared|Installed|Downloading|Downloaded|Creating) ?.*")


def _locked_glibc(target: Target) -> tuple[int, int] | None:
    """The oldest C library that a lock made for ``target`` runs on."""
    if target.glibc is None or target.platform not in PORTABLE_PLATFORMS:
        return target.glibc
    return next((version for version in _PORTABLE_GLIBC if version <= target.glibc), target.glibc)


@dataclass(frozen=True)
class Wheels:
    """uv with the wheel sources of a site. ``environ`` is the user's environment."""

    sources: Sources
    environ: Mapping[str, str]

    @classmethod
    def for_site(cls, site: Site, mirror: Path | None = None) -> Wheels:
        """uv as it is to be used on ``site``, with the wheels that were brought along in ``mirror``."""
        environ = dict(os.environ)
        wheels = site.wheels
        if mirror is not None and (mirror / "wheels").is_dir():
            wheels = wheels.model_copy(update={"find_links": [str(mirror / "wheels"), *wheels.find_links]})
        link = "hardlink" if site.install.link == "hard" else "copy"
        return cls(pip_settings.read(wheels, environ, link=link), environ)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the settings, a line each."""
        return tuple(f"find-links {place} does not exist and is passed over" for place in self.sources.absent)

    def resolve(self, stack: Stack, target: Target, *, offline: bool) -> Lock:
        """The lock of the stack for the target.

        Without GPUs, torch is its CPU build, or this fails. For GPUs that the newest release of a framework has no
        kernels for, it is the last release that has some.
        """
        stack = stack.on(target.accelerator, target.machine)
        packages = self._resolved(stack, target, (), offline=offline)
        gpu = None
        lacking = (find_unserved(each.name, each.version, target.gpus, target.machine) for each in packages)
        if unserved := next(filter(None, lacking), None):
            if unserved.last is None:
                raise MissingPrecondition(f"stack {stack.name} serves no GPU of the site: {unserved}", hint=_BY_SPACK)
            limit = f"{unserved.last.package}<={unserved.last.version}"
            try:
                packages, gpu = self._resolved(stack, target, (limit,), offline=offline), unserved.gpu
            except BuildFailed as error:
                _, _, said = error.message.partition("\n")
                raise MissingPrecondition(
                    f"stack {stack.name} serves no GPU of the site: {unserved}, and the stack cannot hold it\n{said}",
                    hint=_BY_SPACK,
                ) from error
        packages = _permitted(stack, packages)
        _refuse_foreign(stack, target, packages)
        _refuse_two_cudas(stack, target, packages)
        return Lock(
            stack=stack.name,
            python=target.python,
            platform=target.platform,
            glibc=_locked_glibc(target),
            accelerator=target.accelerator,
            requires=requirements(stack),
            packages=packages,
            gpu=gpu,
        )

    def _resolved(self, stack: Stack, target: Target, limits: Sequence[str], *, offline: bool) -> tuple[Package, ...]:
        """The packages, within the stack's constraints and these ``limits``."""
        with paths.temporary_directory("lock") as directory:
            asked, constraints = Path(directory, f"{stack.name}.in"), Path(directory, "constraints.txt")
            asked.write_text("\n".join(_asked(stack)) + "\n", encoding="utf-8")
            argv = self._compile(asked, target, "--format", "pylock.toml", "--only-binary", ":all:")
            if limited := (*map(bare, stack.constraints), *limits):
                constraints.write_text("\n".join(limited) + "\n", encoding="utf-8")
                argv += ["--constraints", str(constraints)]
            argv += self._torch_build(stack, target, Path(directory))
            argv += ["--offline"] if offline else []
            try:
                return _packages(self._uv(argv).stdout)
            except ProcessFailed as failure:
                if offline:
                    raise self._unresolvable_offline(stack, target, Path(directory), failure) from failure
                raise _explained(failure, f"stack {stack.name} could not be resolved") from failure

    def missing(self, plan: InstallPlan) -> tuple[str, ...]:
        """The packages of the plan's wheels that could not be had without a network; the cache may be filled.

        Each is tried in turn, for uv stops at the first that it cannot have.
        """
        with tempfile.TemporaryDirectory(dir=plan.stack_directory, prefix=".offline-") as directory:
            file = Path(directory, "lock.txt")
            file.write_text(plan.lock.wheels.body(), encoding="utf-8")
            argv = self._install(plan, "--target", f"{directory}/tree", "--python", str(plan.target.interpreter))
            whole = self._uv([*argv, "--dry-run", "-r", str(file)], check=False)
            if whole.status == 0 and "Would download" not in whole.stderr:
                return ()
            lacking = []
            for requirement, package in zip(plan.lock.wheels.lines(), plan.lock.wheels.packages, strict=True):
                file.write_text(requirement, encoding="utf-8")
                if self._uv([*argv, "-r", str(file)], check=False).status != 0:
                    lacking.append(f"{package.name}=={package.version}")
            return tuple(lacking)

    def steps(self, plan: InstallPlan, interpreter: Path | None = None) -> tuple[InstallStep, ...]:
        """The commands that fill the plan's prefix: a virtual environment of ``interpreter``, and the wheels.

        Hashes are checked for every package but hidl's own wheels, which are built here.
        """
        python = str(plan.prefix / "bin" / "python")
        options = ["--no-project", "--allow-existing", "--prompt", f"{plan.stack}-{plan.id}"]
        venv = ["venv", *options, "--python", str(interpreter or plan.target.interpreter), str(plan.prefix)]
        own = [str(wheel.file) for wheel in plan.own]
        install = self._install(plan, "--python", python, "-r", str(plan.lock_file), *own)
        variables = pip_settings.uv_variables(self.sources, self.environ)
        return (
            InstallStep("make the virtual environment", (find_uv_bin(), *venv)),
            InstallStep(
                title=f"install {len(plan.lock.wheels.packages)} packages",
                argv=(find_uv_bin(), *install),
                variables=variables,
                without_network=None if plan.offline else (find_uv_bin(), *install, "--offline"),
            ),
        )

    def add(self, title: str, python: Path, *words: str) -> InstallStep:
        """The command that installs requirements, from wheels alone, for an interpreter; ``words``: options too."""
        flags = pip_settings.uv_flags(self.sources, self.environ)
        options = ("--python", str(python), "--only-binary", ":all:")
        argv = (find_uv_bin(), "pip", "install", *flags, *options, *words)
        return InstallStep(title, argv, pip_settings.uv_variables(self.sources, self.environ))

    def download(self, title: str, requirements: Path, directory: Path, target: Target) -> InstallStep:
        """The command that puts the wheels of a requirements file, for ``target``, into ``directory``; by pip."""
        options = ("--no-deps", "--only-binary", ":all:", "--dest", str(directory), "-r", str(requirements))
        flags = pip_settings.uv_flags(self.sources, self.environ)
        python = ("--no-project", "--isolated", *flags, "--python", str(target.interpreter), "--with", "pip")
        return InstallStep(
            title=title,
            argv=(find_uv_bin(), "run", *python, "--", "python", "-m", "pip", "download", *options),
            variables={
                **pip_settings.uv_variables(self.sources, self.environ),
                **pip_settings.pip_variables(self.sources, self.environ),
            },
        )

    def fetch_source(self, plan: InstallPlan, build: Build, wanted: Path, directory: Path) -> InstallStep:
        """See ``Packager``. uv fetches no source without building it, pip does."""
        tools = [word for tool in ("pip", *_requirements(build.requires)) for word in ("--with", tool)]
        python = ("--python", str(plan.target.interpreter))
        options = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes")
        pip = ("python", "-m", "pip", "download", *options, "--dest", str(directory), "-r", str(wanted))
        flags = pip_settings.uv_flags(self.sources, self.environ)
        return InstallStep(
            title=f"fetch {build.source.file}",
            argv=(find_uv_bin(), "run", "--no-project", "--isolated", *flags, *python, *tools, "--", *pip),
            variables={
                **pip_settings.uv_variables(self.sources, self.environ),
                **pip_settings.pip_variables(self.sources, self.environ),
            },
        )

    def build_tools(self, plan: InstallPlan, build: Build, directory: Path) -> InstallStep:
        """See ``Packager``."""
        into = ("--target", str(directory), "--python", str(plan.prefix / "bin" / "python"), "--only-binary", ":all:")
        flags = (*pip_settings.uv_flags(self.sources, self.environ), *(("--offline",) if plan.offline else ()))
        return InstallStep(
            title=f"install what builds {build.name}",
            argv=(find_uv_bin(), "pip", "install", *flags, *into, *_requirements(build.requires)),
            variables=pip_settings.uv_variables(self.sources, self.environ),
        )

    def install_wheel(self, plan: InstallPlan, wheel: Path) -> InstallStep:
        """See ``Packager``."""
        into = ("--python", str(plan.prefix / "bin" / "python"))
        argv = (find_uv_bin(), "pip", "install", "--no-deps", "--offline", *into, str(wheel))
        return InstallStep(f"install {wheel.name}", argv, pip_settings.uv_variables(self.sources, self.environ))

    def run(self, step: InstallStep, log: Path, *, meanwhile: Callable[[], object] | None = None) -> None:
        """See ``Packager``."""
        env = pip_settings.environment(step.variables, self.environ)
        try:
            if step.without_network:
                log_command(log, step.without_network)
                tried = process.run(step.without_network, cwd=_CWD, env=env, log=log, check=False, meanwhile=meanwhile)
                if tried.status == 0:
                    return
                meanwhile = None
            log_command(log, step.argv)
            process.run(step.argv, cwd=_CWD, env=env, log=log, meanwhile=meanwhile)
        except ProcessFailed as failure:
            raise _explained(failure, f"failed to {step.title}") from failure
        finally:
            _scrub(log)

    def _install(self, plan: InstallPlan, *options: str) -> list[str]:
        """``uv pip install`` of exactly what is listed, from the right index for the locked build of torch."""
        argv = ["pip", "install", "--no-deps", *pip_settings.uv_flags(self.sources, self.environ), *options]
        argv += ["--offline"] if plan.offline else []
        torch = plan.lock.wheels.version("torch")
        if torch is None or "+" not in torch or "UV_TORCH_BACKEND" in self.environ:
            return argv
        with paths.temporary_directory("torch") as directory:
            if self._torch_in_find_links(f"torch=={torch}", plan.target, Path(directory)):
                return argv
        return [*argv, "--torch-backend", torch.partition("+")[2]]

    def _torch_build(self, stack: Stack, target: Target, directory: Path) -> list[str]:
        """The options that choose the build of torch: PyPI's own is for CUDA, several GB."""
        if "UV_TORCH_BACKEND" in self.environ:
            return []
        if target.accelerator == "cuda" and _DRIVER.exists():
            return ["--torch-backend", "auto"]
        torch = "\n".join(line for line in _asked(stack) if name_of(line) == "torch")
        found = self._torch_in_find_links(torch or "torch", target, directory)
        found = found if found and found.endswith("+cpu") else None
        if target.accelerator == "cpu" and found is None:
            return ["--torch-backend", "cpu"]
        if found is None:
            return []
        constraint = directory / "torch.txt"
        constraint.write_text((found if target.accelerator == "cpu" else found.replace("==", "!=")) + "\n", "utf-8")
        return ["--constraints", str(constraint)]

    def _torch_in_find_links(self, requirement: str, target: Target, directory: Path) -> str | None:
        """The torch that lies in the find-links and meets the requirement, as ``torch==<version>``."""
        if not self.sources.find_links and "UV_FIND_LINKS" not in self.environ:
            return None
        asked = directory / "torch.in"
        asked.write_text(requirement + "\n", encoding="utf-8")
        found = self._uv(self._compile(asked, target, "--no-deps", "--no-index"), check=False)
        return found.stdout.strip() if found.status == 0 else None

    def _compile(self, asked: Path, target: Target, *options: str) -> list[str]:
        flags = pip_settings.uv_flags(self.sources, self.environ) if "--no-index" not in options else []
        plain = ["--no-header", "--no-annotate", "--python", str(target.interpreter)]
        glibc = _locked_glibc(target)
        if glibc in _PORTABLE_GLIBC and target.platform in PORTABLE_PLATFORMS:
            plain += ["--python-platform", f"{target.machine}-manylinux_{'_'.join(map(str, glibc))}"]
        return ["pip", "compile", str(asked), *plain, *flags, *options]

    def _uv(self, arguments: list[str], *, check: bool = True) -> process.Completed:
        variables = pip_settings.uv_variables(self.sources, self.environ)
        environment = pip_settings.environment(variables, self.environ)
        return process.run([find_uv_bin(), *arguments], cwd=_CWD, env=environment, check=check)

    def _unresolvable_offline(
        self, stack: Stack, target: Target, directory: Path, failure: ProcessFailed
    ) -> MissingPrecondition:
        """Name every requirement of the stack for which the cache and the wheelhouses hold nothing."""
        lacking = []
        for requirement in _asked(stack):
            asked = directory / "one.in"
            asked.write_text(requirement + "\n", encoding="utf-8")
            if self._uv([*self._compile(asked, target, "--no-deps"), "--offline"], check=False).status != 0:
                lacking.append(requirement)
        what = f"missing: {', '.join(lacking)}" if lacking else _said(failure)
        return MissingPrecondition(
            f"stack {stack.name} has no lock here and cannot be resolved offline; {what}",
            hint=f"run `hidl stack lock {stack.name}` once with a network, or put a lock beside the installations",
        )


def _requirements(packages: Mapping[str, str]) -> list[str]:
    return [f"{name}{spec.replace(' ', '')}" for name, spec in packages.items()]


def _asked(stack: Stack) -> list[str]:
    """The stack's requirements as uv reads them: without constraints and hashes."""
    return [bare(line) for line in requirements(stack) if not line.startswith("-c ")]


def _refuse_foreign(stack: Stack, target: Target, packages: Iterable[Package]) -> None:
    """Raise ``BuildFailed`` for another MPI library, and for CUDA where nothing computes by it."""
    names = [package.name for package in packages]
    if foreign := [name for name in names if name in WHEELS - {stack.mpi}]:
        raise BuildFailed(
            f"stack {stack.name} resolves to another MPI library beside {stack.mpi}: {', '.join(foreign)}",
            hint="leave out the package that requires it, or choose a version that does not",
        )
    cuda = [name for name in names if _CUDA.fullmatch(name)]
    if target.accelerator != "cuda" and cuda:
        there = "processors" if target.accelerator == "cpu" else "GPUs of another vendor"
        raise BuildFailed(
            f"stack {stack.name} resolves to CUDA packages, and is for {there}: {', '.join(cuda)}",
            hint="constrain the package that asks for them to another build, or set "
            f"UV_TORCH_BACKEND={TORCH_BACKENDS[target.accelerator]}; for NVIDIA's GPUs, a stack's file says "
            "`devices: [cpu, gpu]`",
        )


def _refuse_two_cudas(stack: Stack, target: Target, packages: Iterable[Package]) -> None:
    """Raise ``BuildFailed`` for builds of one package for two versions of CUDA: the last to come would be there."""
    builds: dict[str, dict[int, str]] = {}
    for package in packages:
        if match := _OF_A_CUDA.fullmatch(package.name):
            builds.setdefault(match[1], {})[int(match[2])] = package.name
    twice = [found for found in builds.values() if len(found) > 1]
    if twice:
        older = min(version for found in twice for version in found)
        torch = last_for_cuda("torch", older, target.machine)
        listed = ", ".join(" and ".join(found[version] for version in sorted(found)) for found in twice)
        raise BuildFailed(
            f"stack {stack.name} resolves to builds for several versions of CUDA, which overwrite each other's files: "
            f"{listed}",
            hint="choose releases for one version of CUDA"
            + (f": PyTorch's last for CUDA {older} is torch<={torch.version}" if torch else ""),
        )


def _permitted(stack: Stack, packages: Iterable[Package]) -> tuple[Package, ...]:
    """The packages, each with the hashes that the requirements permit; ``BuildFailed`` if none is left."""
    permitted: dict[str, frozenset[str]] = {}
    for line in (*stack.requirements, *stack.constraints):
        if hashes := hashes_of(line):
            permitted[name_of(line)] = permitted.get(name_of(line), hashes) & hashes
    kept = []
    for package in packages:
        hashes = permitted.get(package.name, frozenset(package.hashes))
        left = tuple(value for value in package.hashes if value in hashes)
        if not left:
            raise BuildFailed(
                f"no wheel of {package.name} {package.version} for this platform has a hash that is asked for",
                hint=f"remove the hashes of {package.name}, or add those of its wheels "
                "(a file with all of them: uv pip compile --generate-hashes)",
            )
        kept.append(replace(package, hashes=left))
    return tuple(kept)


def _packages(pylock: str) -> tuple[Package, ...]:
    """Read the packages of a ``pylock.toml``, in which uv lists only the wheels that fit the target."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    packages = []
    for package in tomllib.loads(pylock)["packages"]:
        hashes = sorted({wheel["hashes"]["sha256"] for wheel in package["wheels"] if "sha256" in wheel["hashes"]})
        if not hashes:
            raise BuildFailed(f"{package['name']} {package['version']} comes without a SHA-256, so it cannot be locked")
        packages.append(Package(package["name"], package["version"], tuple(hashes)))
    return tuple(packages)


def _explained(failure: ProcessFailed, what: str) -> HidlError:
    """uv's failure in hidl's words, with uv's own message."""
    said = _said(failure)
    log = f"; the whole output is in {failure.log}" if failure.log else ""
    if failure.status == 127:
        return MissingPrecondition(f"{what}: {said}", hint="uv belongs to hidl: install hidl again")
    if _NETWORK.search(failure.output):
        return MissingPrecondition(
            f"{what}: no network, or the package index cannot be reached\n{said}",
            hint=f"check the network and the settings of pip (PIP_INDEX_URL, proxies), or use --offline{log}",
        )
    if "No space left on device" in failure.output or "Disk quota exceeded" in failure.output:
        return BuildFailed(
            f"{what}: the disk is full\n{said}", hint=f"make room, or choose another place with --prefix{log}"
        )
    if "Failed to initialize cache" in failure.output:
        return MissingPrecondition(
            f"{what}: uv's cache cannot be written\n{said}", hint=f"let UV_CACHE_DIR name a directory of your own{log}"
        )
    hint = _BY_SPACK if "no wheels with a matching platform tag" in failure.output else ""
    return BuildFailed(f"{what}\n{said}", hint=f"{hint}{log}".removeprefix("; ") or None)


def _scrub(log: Path) -> None:
    """Take credentials out of the log: uv hides passwords by itself, user names and tokens it may not."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    clean = redact(text)
    if clean != text:
        documents.write_text(log, clean, mode=0o600)


def _said(failure: ProcessFailed) -> str:
    """What uv said, without its chatter and without credentials."""
    lines = [line for line in failure.output.splitlines() if line.strip() and not _CHATTER.fullmatch(line.strip())]
    return redact("\n".join(f"  {line}" for line in lines))
