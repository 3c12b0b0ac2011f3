"""Wheels built by the build backend of the project, without isolation from the installed stack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from uv import find_uv_bin

from hidl_cli.errors import BuildFailed
from hidl_cli.stack.order import InstallStep

if TYPE_CHECKING:
    from hidl_cli.stack.builds.contract import BuildContext, Packager
    from hidl_cli.stack.plan import InstallPlan


class _Wheel:
    """Wheel builds. The product is a directory with one wheel."""

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


KIND = _Wheel()
