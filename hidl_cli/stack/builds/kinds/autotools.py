"""``./configure && make && make install``: programs of C and their like, in the prefix of the stack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli.errors import BuildFailed
from hidl_cli.stack.order import InstallStep

if TYPE_CHECKING:
    from hidl_cli.stack.builds.contract import Packager, Workplace
    from hidl_cli.stack.plan import InstallPlan


class _Autotools:
    """See ``Kind``. The product is what is to lie below the prefix, at the same path below the product's directory.

    It holds the prefix's path (in what it was configured with, and in the paths of its libraries), so it serves no
    other prefix.
    """

    relocatable = False

    def commands(self, place: Workplace) -> tuple[InstallStep, ...]:
        """See ``Kind``."""
        staged = _staged(place.product, place.prefix)
        configure = map(place.fill, place.recipe.configure)
        steps = [
            *(_compiled(file, place.tools) for file in place.objects),
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
        """See ``Kind``."""
        staged = _staged(product, plan.prefix)
        if not staged.is_dir():
            raise BuildFailed(f"`make install` left nothing below {plan.prefix}: it heeds no --prefix or no DESTDIR")
        return (InstallStep(f"copy to {plan.prefix}", ("cp", "-a", f"{staged}/.", str(plan.prefix))),)


def _compiled(file: Path, directory: Path) -> InstallStep:
    argv = ("cc", "-O2", "-fPIC", "-c", str(file), "-o", str(directory / f"{file.stem}.o"))
    return InstallStep(f"compile {file.name}", argv)


def _staged(product: Path, prefix: Path) -> Path:
    """Where the prefix's content lies in the product, as DESTDIR has it."""
    return product / prefix.relative_to(prefix.anchor)


KIND = _Autotools()
