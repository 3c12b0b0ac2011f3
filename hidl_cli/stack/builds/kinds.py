"""Build kinds (autotools and wheels), and the interfaces that they and the wheel installer implement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from uv import find_uv_bin

from hidl_cli.errors import BuildFailed
from hidl_cli.stack.order import InstallStep

if TYPE_CHECKING:
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.schema import Build


@dataclass(frozen=True)
class BuildContext:
    """A build's directories and settings.

    ``source`` is the patched source tree, in which the commands run, ``product`` is an empty directory for the product,
    ``prefix`` is the stack's prefix, and ``tools`` is the directory that contains the build requirements. ``jobs`` is
    the number of parallel compile jobs. ``objects`` are C files to compile first.
    """

    recipe: Build
    source: Path
    product: Path
    prefix: Path
    tools: Path
    jobs: int
    objects: tuple[Path, ...] = ()

    def fill(self, text: str) -> str:
        """Replace ``{tools}`` in a string from the recipe with the tools directory."""
        return text.replace("{tools}", str(self.tools))


class BuildKind(Protocol):
    """A kind of build. If ``relocatable`` is set, a cached product can be installed into any prefix."""

    relocatable: bool

    def commands(self, place: BuildContext) -> tuple[InstallStep, ...]:
        """Return the commands that build the product, in order; they run in ``place.source``."""

    def installation(self, plan: InstallPlan, provider: Packager, product: Path) -> tuple[InstallStep, ...]:
        """Return the commands that install a product into the plan's prefix."""


class Packager(Protocol):
    """An installer for wheels and their build requirements."""

    def fetch_source(self, plan: InstallPlan, build: Build, wanted: Path, directory: Path) -> InstallStep:
        """Return the command that downloads the source archive into ``directory``.

        ``wanted`` is a requirements file that contains the archive's hash.
        """

    def build_tools(self, plan: InstallPlan, build: Build, directory: Path) -> InstallStep:
        """Return the command that installs the build requirements into ``directory``, outside of the stack."""

    def install_wheel(self, plan: InstallPlan, wheel: Path) -> InstallStep:
        """Return the command that installs a built wheel into the prefix, without dependencies."""

    def run(self, step: InstallStep, log: Path, *, meanwhile: Callable[[], object] | None = None) -> None:
        """Run a command and append its output to ``log``; ``meanwhile`` is called while it runs."""


class _Autotools:
    """A build that runs ``./configure && make && make install`` and installs into the stack's prefix.

    The product is the directory tree that ``make install`` writes to DESTDIR. The installed files are below the path of
    the prefix in this tree. They contain that path, for example in run paths, so a product only works with one prefix.
    """

    relocatable = False

    def commands(self, place: BuildContext) -> tuple[InstallStep, ...]:
        staged = _staged(place.product, place.prefix)
        configure = map(place.fill, place.recipe.configure)
        steps = [
            *(_compile_object(file, place.tools) for file in place.objects),
            InstallStep("configure", ("./configure", f"--prefix={place.prefix}", *configure)),
            InstallStep("compile", ("make",)),
            InstallStep("install", ("make", "install", f"DESTDIR={place.product}")),
        ]
        if place.recipe.link_programs:
            programs, bin_ = staged / place.recipe.link_programs, staged / "bin"
            find = ("find", str(programs), "-type", "f", "-perm", "-u+x")
            link = ("-exec", "ln", "--symbolic", "--relative", "--target-directory", str(bin_), "{}", "+")
            steps += [
                InstallStep("make bin", ("mkdir", "-p", str(bin_))),
                InstallStep("link the programs", (*find, *link)),
            ]
        return tuple(steps)

    def installation(self, plan: InstallPlan, provider: Packager, product: Path) -> tuple[InstallStep, ...]:
        staged = _staged(product, plan.prefix)
        if not staged.is_dir():
            raise BuildFailed(f"`make install` installed nothing below {plan.prefix}: it ignores --prefix or DESTDIR")
        return (InstallStep(f"copy to {plan.prefix}", ("cp", "-a", f"{staged}/.", str(plan.prefix))),)


def _compile_object(file: Path, directory: Path) -> InstallStep:
    argv = ("cc", "-O2", "-fPIC", "-c", str(file), "-o", str(directory / f"{file.stem}.o"))
    return InstallStep(f"compile {file.name}", argv)


def _staged(product: Path, prefix: Path) -> Path:
    """Return the directory in the product (the DESTDIR of ``make install``) that contains the prefix's files."""
    return product / prefix.relative_to(prefix.anchor)


class _Wheel:
    """Wheels built by the project's build backend, without isolation from the installed stack.

    The product is a directory with one wheel.
    """

    relocatable = True

    def commands(self, place: BuildContext) -> tuple[InstallStep, ...]:
        options = ("--wheel", "--no-build-isolation", "--no-config", "--offline")
        python = str(place.prefix / "bin" / "python")
        words = ("--python", python, "--out-dir", str(place.product), str(place.source))
        return (InstallStep("build the wheel", (find_uv_bin(), "build", *options, *words)),)

    def installation(self, plan: InstallPlan, provider: Packager, product: Path) -> tuple[InstallStep, ...]:
        wheels = sorted(product.glob("*.whl"))
        if len(wheels) != 1:
            raise BuildFailed(f"expected one wheel in {product}, got {len(wheels)}")
        return (provider.install_wheel(plan, wheels[0]),)


KINDS: Mapping[str, BuildKind] = {"autotools": _Autotools(), "wheel": _Wheel()}
