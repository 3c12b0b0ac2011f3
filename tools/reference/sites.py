"""The page of the sites that ship with hidl, out of their files."""

from __future__ import annotations

from hidl_cli.inputs.load import load
from hidl_cli.inputs.overlay import list_all
from hidl_cli.plan.devices import reason_not_runnable
from hidl_cli.site.checks import RULES
from hidl_cli.site.load import unknown_facts
from hidl_cli.site.schema import Site

from .markdown import table

_HEAD = """\
# Sites

The machines that hidl knows, each by a file in `site_configs/`. `hidl site show NAME` prints all that is known of one,
with its sources and notes; `hidl site check NAME` lists what is unknown. Nothing in these files is guessed: a fact
without a public source is left out. Choices that are hidl's own (the default partition and MPI library, mostly) have a
comment that says so.

A **retired** system can be planned for (`--dry-run`), to compare with what was published; **early** is one that is open
to invited users alone. *Runs* tells whether hidl renders job scripts for it, or why not. *GPUs* are those of a node,
*unknown* counts facts. *Found by* tells how `hidl site detect` knows the place; other sites must be named (`--site`),
or get a `match` in a [file of your own](../how-to/describe-a-site.md).

"""
_COLUMNS = ("site", "", "status", "runs", "scheduler", "launchers", "GPUs", "MPI libraries", "found by", "unknown")


def pages() -> dict[str, str]:
    """The page."""
    sites = [load(RULES, entry.name) for entry in list_all("site") if entry.origin == "shipped"]
    rows = [_row(site) for site in sites if site.name != "local"]
    return {"reference/sites.md": _HEAD + table(_COLUMNS, rows)}


def _row(site: Site) -> list[str]:
    return [
        f"`{site.name}`",
        site.title,
        site.status or "unknown",
        "no: " + reason if (reason := reason_not_runnable(site)) else "yes",
        site.scheduler or "unknown",
        ", ".join(site.launchers) or "unknown",
        _gpus(site),
        ", ".join(_marked(name, name == site.default_mpi) for name in site.mpi) or "unknown",
        _conditions(site),
        str(len(unknown_facts(site)) or ""),
    ]


def _gpus(site: Site) -> str:
    found = {
        f"{node.gpus or '?'} x {node.gpu_model or 'unknown'}": None
        for node in site.node_types.values()
        if node.gpus != 0 and (node.gpus or node.gpu_model)
    }
    return ", ".join(found)


def _marked(name: str, is_default: bool) -> str:
    return f"**{name}**" if is_default else name


def _conditions(site: Site) -> str:
    if site.match is None:
        return ""
    return ", ".join(["host name"] * bool(site.match.hostname) + [f"`${name}`" for name in site.match.env])
