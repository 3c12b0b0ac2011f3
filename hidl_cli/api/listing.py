"""What there is: sites, stacks and workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from hidl_cli.api.options import absolute

if TYPE_CHECKING:
    from hidl_cli.stack.installation import Installation


@dataclass(frozen=True)
class Site:
    """A site; ``runs``: whether hidl can run jobs there, else ``why_not``. ``origin``: whose ``file`` it is."""

    name: str
    title: str | None
    status: str | None
    scheduler: str | None
    launchers: tuple[str, ...]
    runs: bool
    why_not: str | None
    origin: str
    file: str


@dataclass(frozen=True)
class Stack:
    """A stack, and its installations on a site: their id, prefix, size in bytes, lock and verification."""

    name: str
    title: str
    origin: str
    installations: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Workload:
    """A workload."""

    name: str
    title: str
    origin: str


def sites() -> list[Site]:
    """Return all sites: ``hidl site list``. A faulty file is listed too."""
    from hidl_cli.inputs.load import examine
    from hidl_cli.inputs.overlay import list_all
    from hidl_cli.plan.runnable import reason_not_runnable
    from hidl_cli.site.checks import RULES

    found = []
    for entry in list_all("site"):
        site = examine(RULES, entry).model
        reason = reason_not_runnable(site) if site else "faulty file"
        found.append(
            Site(
                name=entry.name,
                title=site.title if site else None,
                status=site.status if site else "faulty",
                scheduler=site.scheduler if site else None,
                launchers=tuple(site.launchers) if site else (),
                runs=reason is None,
                why_not=reason,
                origin=entry.origin,
                file=str(entry.path),
            )
        )
    return found


def stacks(site: str | None = None, *, prefix: str | PathLike[str] | None = None) -> list[Stack]:
    """Return all stacks and where they are installed for the site: ``hidl stack list``."""
    from hidl_cli.inputs.overlay import list_all
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.load import load_stack

    where = load_site(site)
    installed = [
        found
        for root in installation.roots(where, absolute(prefix))
        for found in installation.list_all(root)
        if found.manifest["site"] == where.name
    ]
    return [
        Stack(
            name=entry.name,
            title=load_stack(entry.name).title,
            origin=entry.origin,
            installations=tuple(
                summarize_installation(found) for found in installed if found.prefix.parent.name == entry.name
            ),
        )
        for entry in list_all("stack")
    ]


def workloads() -> list[Workload]:
    """Return all workloads: ``hidl workload list``."""
    from hidl_cli.inputs.overlay import list_all
    from hidl_cli.plan.load import load_workload

    return [Workload(entry.name, load_workload(entry.name).title, entry.origin) for entry in list_all("workload")]


def summarize_installation(found: Installation) -> dict[str, Any]:
    """Return what lists say of an installation."""
    from hidl_cli.stack.installation import size

    manifest = found.manifest
    verification = manifest.get("verification", {})
    return {
        "id": manifest["id"],
        "prefix": str(found.prefix),
        "current": found.is_current,
        "bytes": size(found.prefix),
        "created": manifest["created"],
        "lock": manifest["lock"]["digest"],
        "activation": str(found.activate),
        "verification": {key: verification.get(key) for key in ("where", "at", "host", "job", "run", "mpi", "checks")},
    }
