"""How people use an installation: a script to source and a modulefile to load.

The modulefile is Tcl: Environment Modules reads no other, and Lmod reads it as well as its own Lua.
"""

from __future__ import annotations

from dataclasses import dataclass

from hidl_cli.quoting import comment
from hidl_cli.stack.installation import UNSET, variables
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.templates import render_modulefile, render_script


@dataclass(frozen=True)
class Activation:
    """The texts of both."""

    script: str
    modulefile: str


def render(plan: InstallPlan) -> Activation:
    """Render what the plan's installation will be used by; nothing is written."""
    values = {
        "site": plan.site,
        "stack": plan.stack,
        "id": plan.id,
        "title": comment(f"{plan.stack}: {plan.title} (hidl, site {plan.site}, {plan.id})"),
        "prefix": str(plan.prefix),
        "bin": str(plan.prefix / "bin"),
        "variables": variables(plan.prefix, plan.stack),
        "unset": UNSET,
    }
    return Activation(
        script=render_script("activate.sh.j2", values),
        modulefile=render_modulefile("modulefile.tcl.j2", values),
    )
