"""Wheels, built by the project's own build backend against the stack that is there: no isolation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from uv import find_uv_bin

from hidl_cli.errors import BuildFailed
from hidl_cli.stack.order import InstallStep

if TYPE_CHECKING:
    from hidl_cli.stack.builds.contract import Packager, Workplace
    from hidl_cli.stack.plan import InstallPlan


class _Wheel:
    """See ``Kind``. The product is a directory with one wheel in it."""

    relocatable = True

    def commands(self, place: Workplace) -> tuple[InstallStep, ...]:
        """See ``Kind``."""
        options = ("--wheel", "--no-build-isolation", "--no-config", "--offline")
        python = str(place.prefix / "bin" / "python")
        argv = (
            find_uv_bin(),
            "build",
            *options,
            "--python",
            python,
            "--out-dir",
            str(place.product),
            str(place.source),
        )
        return (InstallStep("build the wheel", argv),)

    def installation(self, plan: InstallPlan, provider: Packager, product: Path) -> tuple[InstallStep, ...]:
        """See ``Kind``."""
        wheels = sorted(product.glob("*.whl"))
        if len(wheels) != 1:
            raise BuildFailed(f"the build left {len(wheels)} wheels in {product}, not one")
        return (provider.install_wheel(plan, wheels[0]),)


KIND = _Wheel()
