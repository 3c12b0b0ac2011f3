"""Plug-ins: can each one that is installed be used?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hidl_cli.batch_systems import SCHEDULERS
from hidl_cli.doctor.context import Context, Subject
from hidl_cli.launchers import LAUNCHERS
from hidl_cli.plan.workload import PARSERS
from hidl_cli.plugins import PluginEntry, Registry
from hidl_cli.site.schema import PROVIDERS
from hidl_workloads.doctor.finding import Evidence, Rules

REGISTRIES: tuple[Registry[Any], ...] = (LAUNCHERS, SCHEDULERS, PROVIDERS, PARSERS)


@dataclass(frozen=True)
class Plugin:
    """An installed plug-in; ``problem``: why it cannot be used, None if it can."""

    kind: str
    entry: PluginEntry
    problem: str | None


def find_plugins() -> tuple[Plugin, ...]:
    """Return all installed plug-ins; each is loaded."""
    return tuple(
        Plugin(registry.what, entry, problem) for registry in REGISTRIES for entry, problem in registry.problems()
    )


def probe(_context: Context) -> tuple[Plugin, ...]:
    """Plug-ins belong to the Python that runs hidl, whatever host or site is examined."""
    return find_plugins()


RULES: Rules[tuple[Plugin, ...]] = Rules()


@RULES.rule(
    "HD010",
    "A plug-in cannot be used",
    severity="error",
    why="A package adds a launcher, scheduler, provider or parser to hidl by an entry point. What it names "
    "cannot be imported, is of another kind, or has a name that is taken; a file that names it ends with this error.",
)
def broken(plugins: tuple[Plugin, ...]) -> Iterator[Evidence]:
    """Each plug-in with a problem."""
    for plugin in plugins:
        if plugin.problem:
            package = plugin.entry.package.partition(" ")[0]
            yield Evidence(plugin.problem, f"upgrade or uninstall {package}")


SUBJECT = Subject(probe, RULES)
