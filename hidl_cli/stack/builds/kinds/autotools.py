"""Builds with ``./configure && make && make install``, installed into the stack's prefix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli.errors import BuildFailed
from hidl_cli.stack.order import InstallStep

if TYPE_CHECKING:
    from hidl_cli.stack.builds.contract import BuildContext, Packager
    from hidl_cli.stack.plan import InstallPlan


class _Autotools:
    """Autotools builds. The product is a directory tree that contains the prefix with the installed files (DESTDIR).

    The files contain the path of the prefix, for example as run paths, so a product can only be used under one prefix.
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
    """Return the directory in the product that DESTDIR maps the prefix to."""
    return product / prefix.relative_to(prefix.anchor)


KIND = _Autotools()
