"""Resolve stacks and install wheels with uv."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from uv import find_uv_bin

from hidl_cli import documents, paths, process
from hidl_cli.documents import sha256
from hidl_cli.errors import BuildFailed, HidlError, MissingPrecondition, ProcessFailed
from hidl_cli.mpi import WHEELS
from hidl_cli.redaction import redact
from hidl_cli.stack import PORTABLE_PLATFORMS, pip_settings
from hidl_cli.stack.lock import Lock, Package, requirements
from hidl_cli.stack.order import InstallStep, log_command
from hidl_cli.stack.pip_settings import Sources
from hidl_cli.stack.references import ReferenceBuilder, expand, name_of_wheel, read_toml, split
from hidl_cli.stack.schema import Build, Stack, applies, bare, find_unserved, hashes_of, last_for_cuda, name_of
from hidl_cli.stack.target import TORCH_BACKENDS, Target

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.plan import InstallPlan, StackSources

# The glibc versions that both manylinux tags and uv's --python-platform support. On a machine with a newer glibc,
# lockfiles are created for the first of them, so that older machines can use these lockfiles as well.
_PORTABLE_GLIBC = ((2, 28), (2, 17))
# uv reads the configuration of the project in its working directory, so it runs outside of any project.
_CWD = Path("/")
_CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")
#: Packages built for a particular CUDA version, such as nvidia-nccl-cu12 and cupy-cuda13x. The files of different
#: builds of a package conflict.
_CUDA_BUILD = re.compile(r"(.+)-cu(?:da)?(\d+)x?")
#: File that contains the version of NVIDIA's driver. If it exists, uv selects the matching build of torch.
_DRIVER = Path("/proc/driver/nvidia/version")
#: Part of the URLs of PyTorch's indexes. Each index contains a single build of torch, so hidl does not select a build.
_TORCH_INDEX = "download.pytorch.org/whl/"
_USE_SPACK = "build the stack with --provider spack"
_NETWORK = re.compile(
    r"error sending request|dns error|Connect\)|timed out|Network connectivity is disabled|network was disabled",
    re.IGNORECASE,
)
_CHATTER = re.compile(r"(Using (CPython|Python)|Resolved|Prepared|Installed|Downloading|Downloaded|Creating) ?.*")


def _locked_glibc(target: Target) -> tuple[int, int] | None:
    """Return the oldest glibc supported by a lockfile for ``target``."""
    if target.glibc is None or target.platform not in PORTABLE_PLATFORMS:
        return target.glibc
    return next((version for version in _PORTABLE_GLIBC if version <= target.glibc), target.glibc)


@dataclass(frozen=True)
class WheelInstaller:
    """Runs uv with a site's package indexes and wheel directories; ``environ`` is the user's environment."""

    sources: Sources
    environ: Mapping[str, str]
    #: Wheels of direct references, by reference.
    wheels: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def for_site(cls, site: Site, mirror: Path | None = None) -> WheelInstaller:
        """Return uv with the settings from ``site`` and the wheels in ``mirror``."""
        environ = dict(os.environ)
        wheels = site.wheels
        if mirror is not None and (mirror / "wheels").is_dir():
            wheels = wheels.model_copy(update={"find_links": [str(mirror / "wheels"), *wheels.find_links]})
        link = "hardlink" if site.install.link == "hard" else "copy"
        return cls(pip_settings.read(wheels, environ, link=link), environ)

    def with_sources(
        self, extra: StackSources, target: Target, *, offline: bool, lock: Lock | None = None
    ) -> WheelInstaller:
        """Return an installer that also uses a stack's own package sources and the wheels of its direct references.

        Args:
            extra: The stack's package sources and references.
            target: The target, for which the markers of references are evaluated.
            offline: Do not use the network.
            lock: The stack's lockfile. References are not built if their locked wheels are in find-links, such as a
                mirror.
        """
        if not any((extra.indexes, extra.find_links, extra.references)):
            return self
        sources = self.sources.with_stack(
            (expand(url, self.environ) for url in extra.indexes),
            (expand(place, self.environ) for place in extra.find_links),
        )
        builder = replace(self, sources=sources).reference_builder(target, offline=offline)
        hashes = {package.name: package.hashes for package in lock.packages} if lock else {}
        wheels = {}
        for text in extra.references:
            _, url, marker = split(text)
            if applies(marker, target.markers):
                name = name_of(text)
                wheels[text] = _find_wheel(sources, name, hashes.get(name, ())) or builder.wheel(url, name)
        links = dict.fromkeys(str(wheel.parent) for wheel in wheels.values())
        return replace(self, sources=sources.with_stack((), links), wheels=wheels)

    def reference_builder(self, target: Target, *, offline: bool) -> ReferenceBuilder:
        """Return the object that locks and builds direct references for the target."""
        tag = f"{target.python}-{target.platform}"
        return ReferenceBuilder(self.sources, self.environ, target.interpreter, tag, offline, target.markers)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user about the settings, each on one line."""
        return tuple(f"ignoring find-links {place}: it does not exist" for place in self.sources.absent)

    def resolve(self, stack: Stack, target: Target, *, offline: bool) -> Lock:
        """Resolve the stack for the target.

        Targets without GPUs get the CPU build of torch. If the newest release of a framework has no kernels for the
        target's GPUs, the last release that has them is selected. Raises ``MissingPrecondition`` or ``BuildFailed``.
        """
        stack = stack.on(target.accelerator, target.machine)
        packages = self._resolve_packages(stack, target, (), offline=offline)
        gpu = None
        lacking = (find_unserved(each.name, each.version, target.gpus, target.machine) for each in packages)
        if unserved := next(filter(None, lacking), None):
            if unserved.last is None:
                raise MissingPrecondition(
                    f"stack {stack.name} does not support the GPUs of the site: {unserved}", hint=_USE_SPACK
                )
            limit = f"{unserved.last.package}<={unserved.last.version}"
            try:
                packages, gpu = self._resolve_packages(stack, target, (limit,), offline=offline), unserved.gpu
            except BuildFailed as error:
                _, _, reason = error.message.partition("\n")
                raise MissingPrecondition(
                    f"stack {stack.name} does not support the GPUs of the site: {unserved}, but its "
                    f"requirements exclude that release\n{reason}",
                    hint=_USE_SPACK,
                ) from error
        packages = _restrict_hashes(stack, packages)
        _check_hardware(stack, target, packages)
        _check_cuda_versions(stack, target, packages)
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

    def _resolve_packages(
        self, stack: Stack, target: Target, limits: Sequence[str], *, offline: bool
    ) -> tuple[Package, ...]:
        """Resolve the stack within its constraints and the additional ``limits``."""
        with paths.temporary_directory("lock") as directory:
            required, constraints = Path(directory, f"{stack.name}.in"), Path(directory, "constraints.txt")
            required.write_text("\n".join(map(self._built, _bare_requirements(stack))) + "\n", encoding="utf-8")
            argv = self._compile_arguments(required, target, "--format", "pylock.toml", "--only-binary", ":all:")
            if limited := (*map(bare, stack.constraints), *limits):
                constraints.write_text("\n".join(limited) + "\n", encoding="utf-8")
                argv += ["--constraints", str(constraints)]
            argv += self._torch_options(stack, target, Path(directory))
            argv += ["--offline"] if offline else []
            try:
                return _packages(self._uv(argv).stdout)
            except ProcessFailed as failure:
                if offline:
                    raise self._unresolvable_offline(stack, target, Path(directory), failure) from failure
                raise _explain(failure, f"failed to resolve stack {stack.name}") from failure

    def _built(self, requirement: str) -> str:
        """Return the requirement for uv, in which a direct reference is replaced by its wheel."""
        wheel = self.wheels.get(requirement)
        if wheel is None:
            return requirement
        head, _, marker = split(requirement)
        return f"{head} @ {wheel.as_uri()}{f' ; {marker}' if marker else ''}"

    def missing(self, plan: InstallPlan) -> tuple[str, ...]:
        """Return the plan's wheels that are not available offline. This check may fill the cache.

        The packages are tried individually, because uv stops at the first missing one.
        """
        with tempfile.TemporaryDirectory(dir=plan.stack_directory, prefix=".offline-") as directory:
            file = Path(directory, "lock.txt")
            file.write_text(plan.lock.wheels.body(), encoding="utf-8")
            argv = self._install_arguments(
                plan, "--target", f"{directory}/tree", "--python", str(plan.target.interpreter)
            )
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
        """Return the commands for creating the virtual environment and installing the wheels.

        All hashes are checked, except for those of hidl's own wheels, which are built here.
        """
        python = str(plan.prefix / "bin" / "python")
        options = ["--no-project", "--allow-existing", "--prompt", f"{plan.stack}-{plan.id}"]
        venv = ["venv", *options, "--python", str(interpreter or plan.target.interpreter), str(plan.prefix)]
        own = [str(wheel.file) for wheel in plan.own]
        install = self._install_arguments(plan, "--python", python, "-r", str(plan.lock_file), *own)
        variables = pip_settings.uv_variables(self.sources, self.environ)
        return (
            InstallStep("create the virtual environment", (find_uv_bin(), *venv)),
            InstallStep(
                title=f"install {len(plan.lock.wheels.packages)} packages",
                argv=(find_uv_bin(), *install),
                variables=variables,
                without_network=None if plan.offline else (find_uv_bin(), *install, "--offline"),
            ),
        )

    def add(self, title: str, python: Path, *words: str) -> InstallStep:
        """Return the command that installs wheels for an interpreter. ``words`` contains requirements and options."""
        flags = pip_settings.uv_flags(self.sources, self.environ)
        options = ("--python", str(python), "--only-binary", ":all:")
        argv = (find_uv_bin(), "pip", "install", *flags, *options, *words)
        return InstallStep(title, argv, pip_settings.uv_variables(self.sources, self.environ))

    def download(self, title: str, requirements: Path, directory: Path, target: Target) -> InstallStep:
        """Return the pip command that downloads the wheels in a requirements file for ``target``."""
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
        # pip can download a source archive without building it, but uv cannot.
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
        into = ("--target", str(directory), "--python", str(plan.prefix / "bin" / "python"), "--only-binary", ":all:")
        flags = (*pip_settings.uv_flags(self.sources, self.environ), *(("--offline",) if plan.offline else ()))
        return InstallStep(
            title=f"install the build requirements of {build.name}",
            argv=(find_uv_bin(), "pip", "install", *flags, *into, *_requirements(build.requires)),
            variables=pip_settings.uv_variables(self.sources, self.environ),
        )

    def install_wheel(self, plan: InstallPlan, wheel: Path) -> InstallStep:
        into = ("--python", str(plan.prefix / "bin" / "python"))
        argv = (find_uv_bin(), "pip", "install", "--no-deps", "--offline", *into, str(wheel))
        return InstallStep(f"install {wheel.name}", argv, pip_settings.uv_variables(self.sources, self.environ))

    def run(self, step: InstallStep, log: Path, *, meanwhile: Callable[[], object] | None = None) -> None:
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
            raise _explain(failure, f"failed to {step.title}") from failure
        finally:
            _redact_log(log)

    def _install_arguments(self, plan: InstallPlan, *options: str) -> list[str]:
        """Return the ``uv pip install`` arguments for locked packages, including the index for the torch build."""
        argv = ["pip", "install", "--no-deps", *pip_settings.uv_flags(self.sources, self.environ), *options]
        argv += ["--offline"] if plan.offline else []
        torch = plan.lock.wheels.version("torch")
        if torch is None or "+" not in torch or "UV_TORCH_BACKEND" in self.environ:
            return argv
        with paths.temporary_directory("torch") as directory:
            if self._torch_in_find_links(f"torch=={torch}", plan.target, Path(directory)):
                return argv
        return [*argv, "--torch-backend", torch.partition("+")[2]]

    def _torch_options(self, stack: Stack, target: Target, directory: Path) -> list[str]:
        """Return the options that select a torch build. PyPI's default is a CUDA build of several GB."""
        if "UV_TORCH_BACKEND" in self.environ:
            return []
        if target.accelerator != "cpu" and any(_TORCH_INDEX in url for url in self.sources.extra_index_urls):
            return []
        if target.accelerator == "cuda" and _DRIVER.exists():
            return ["--torch-backend", "auto"]
        torch = "\n".join(line for line in _bare_requirements(stack) if name_of(line) == "torch")
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
        """Return the torch version in find-links that satisfies the requirement, as ``torch==<version>``, or None."""
        if not self.sources.find_links and "UV_FIND_LINKS" not in self.environ:
            return None
        required = directory / "torch.in"
        required.write_text(requirement + "\n", encoding="utf-8")
        found = self._uv(self._compile_arguments(required, target, "--no-deps", "--no-index"), check=False)
        return found.stdout.strip() if found.status == 0 else None

    def _compile_arguments(self, required: Path, target: Target, *options: str) -> list[str]:
        flags = pip_settings.uv_flags(self.sources, self.environ) if "--no-index" not in options else []
        plain = ["--no-header", "--no-annotate", "--python", str(target.interpreter)]
        glibc = _locked_glibc(target)
        if glibc in _PORTABLE_GLIBC and target.platform in PORTABLE_PLATFORMS:
            plain += ["--python-platform", f"{target.machine}-manylinux_{'_'.join(map(str, glibc))}"]
        return ["pip", "compile", str(required), *plain, *flags, *options]

    def _uv(self, arguments: list[str], *, check: bool = True) -> process.Completed:
        variables = pip_settings.uv_variables(self.sources, self.environ)
        environment = pip_settings.environment(variables, self.environ)
        return process.run([find_uv_bin(), *arguments], cwd=_CWD, env=environment, check=check)

    def _unresolvable_offline(
        self, stack: Stack, target: Target, directory: Path, failure: ProcessFailed
    ) -> MissingPrecondition:
        """Return an error that lists all of the stack's requirements that are not in the cache or a wheelhouse."""
        lacking = []
        for requirement in _bare_requirements(stack):
            required = directory / "one.in"
            required.write_text(self._built(requirement) + "\n", encoding="utf-8")
            if (
                self._uv([*self._compile_arguments(required, target, "--no-deps"), "--offline"], check=False).status
                != 0
            ):
                lacking.append(requirement)
        what = f"missing: {', '.join(lacking)}" if lacking else _output(failure)
        return MissingPrecondition(
            f"stack {stack.name} has no lockfile and cannot be resolved offline; {what}",
            hint=f"run `hidl stack lock {stack.name}` once with network access, or copy a lockfile to <root>/locks",
        )


def _find_wheel(sources: Sources, name: str, hashes: Collection[str]) -> Path | None:
    """Return the package's wheel that has one of these hashes in a find-links directory, or None if there is none."""
    if not hashes:
        return None
    found = (file for place in pip_settings.directories(sources) for file in sorted(place.glob("*.whl")))
    return next((file for file in found if name_of_wheel(file) == name and sha256(file) in hashes), None)


def _requirements(packages: Mapping[str, str]) -> list[str]:
    return [f"{name}{spec.replace(' ', '')}" for name, spec in packages.items()]


def _bare_requirements(stack: Stack) -> list[str]:
    """Return the stack's requirements for uv, excluding constraints, package sources and hashes."""
    return [bare(line) for line in requirements(stack) if not line.startswith("-")]


def _check_hardware(stack: Stack, target: Target, packages: Iterable[Package]) -> None:
    """Raise ``BuildFailed`` for a second MPI library, and for CUDA packages on nodes without NVIDIA GPUs."""
    names = [package.name for package in packages]
    if foreign := [name for name in names if name in WHEELS - {stack.mpi}]:
        raise BuildFailed(
            f"stack {stack.name} resolves to a second MPI library in addition to {stack.mpi}: {', '.join(foreign)}",
            hint="remove the package that requires it, or choose a version that does not",
        )
    cuda = [name for name in names if _CUDA.fullmatch(name)]
    if target.accelerator != "cuda" and cuda:
        hardware = "CPUs" if target.accelerator == "cpu" else "GPUs of another vendor"
        raise BuildFailed(
            f"stack {stack.name} is for {hardware} but resolves to CUDA packages: {', '.join(cuda)}",
            hint="add a constraint for another build of the package that requires them, or set "
            f"UV_TORCH_BACKEND={TORCH_BACKENDS[target.accelerator]}; stacks for NVIDIA GPUs need "
            "`devices: [cpu, gpu]`",
        )


def _check_cuda_versions(stack: Stack, target: Target, packages: Iterable[Package]) -> None:
    """Raise ``BuildFailed`` if builds of a package for two CUDA versions would overwrite each other's files."""
    builds: dict[str, dict[int, str]] = {}
    for package in packages:
        if match := _CUDA_BUILD.fullmatch(package.name):
            builds.setdefault(match[1], {})[int(match[2])] = package.name
    twice = [found for found in builds.values() if len(found) > 1]
    if twice:
        older = min(version for found in twice for version in found)
        torch = last_for_cuda("torch", older, target.machine)
        listed = ", ".join(" and ".join(found[version] for version in sorted(found)) for found in twice)
        raise BuildFailed(
            f"stack {stack.name} resolves to builds for several CUDA versions, whose files conflict: {listed}",
            hint="choose releases for a single CUDA version"
            + (f": the last PyTorch for CUDA {older} is torch<={torch.version}" if torch else ""),
        )


def _restrict_hashes(stack: Stack, packages: Iterable[Package]) -> tuple[Package, ...]:
    """Restrict the packages' hashes to those in the requirements.

    Raises ``BuildFailed`` if no hash is left for a package.
    """
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
                f"no wheel of {package.name} {package.version} for this platform has a permitted hash",
                hint=f"remove the hashes of {package.name}, or add those of its wheels "
                "(uv pip compile --generate-hashes writes all of them)",
            )
        kept.append(replace(package, hashes=left))
    return tuple(kept)


def _packages(pylock: str) -> tuple[Package, ...]:
    """Read the packages in a ``pylock.toml``, in which uv only lists wheels that fit the target."""
    packages = []
    for package in read_toml(pylock)["packages"]:
        files = package.get("wheels") or [package.get("archive", {"hashes": {}})]
        hashes = sorted({each["hashes"]["sha256"] for each in files if "sha256" in each["hashes"]})
        if not hashes:
            raise BuildFailed(f"{package['name']} {package['version']} cannot be locked: it has no SHA-256")
        packages.append(Package(package["name"], package["version"], tuple(hashes)))
    return tuple(packages)


def _explain(failure: ProcessFailed, what: str) -> HidlError:
    """Turn a uv failure into an error with uv's message and a hint."""
    output = _output(failure)
    log = f"; the full output is in {failure.log}" if failure.log else ""
    if failure.status == 127:
        return MissingPrecondition(f"{what}: {output}", hint="uv is a dependency of hidl: reinstall hidl")
    if _NETWORK.search(failure.output):
        return MissingPrecondition(
            f"{what}: the package index cannot be reached\n{output}",
            hint=f"check the network and pip's settings (PIP_INDEX_URL, proxies), or use --offline{log}",
        )
    if "No space left on device" in failure.output or "Disk quota exceeded" in failure.output:
        return BuildFailed(
            f"{what}: the disk is full\n{output}",
            hint=f"free some space, or choose another directory with --prefix{log}",
        )
    if "Failed to initialize cache" in failure.output:
        return MissingPrecondition(
            f"{what}: cannot write to uv's cache\n{output}", hint=f"set UV_CACHE_DIR to a writable directory{log}"
        )
    hint = _USE_SPACK if "no wheels with a matching platform tag" in failure.output else ""
    return BuildFailed(f"{what}\n{output}", hint=f"{hint}{log}".removeprefix("; ") or None)


def _redact_log(log: Path) -> None:
    """Redact credentials in the log, because uv always hides passwords, but not always user names and tokens."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    clean = redact(text)
    if clean != text:
        documents.write_text(log, clean, mode=0o600)


def _output(failure: ProcessFailed) -> str:
    """Return uv's output with progress messages and credentials removed."""
    lines = [line for line in failure.output.splitlines() if line.strip() and not _CHATTER.fullmatch(line.strip())]
    return redact("\n".join(f"  {line}" for line in lines))
