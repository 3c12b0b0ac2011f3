"""Installed plug-ins, and the reasons why they cannot be used."""

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
    """An installed plug-in. If it cannot be used, ``problem`` explains why."""

    kind: str
    entry: PluginEntry
    problem: str | None


def find_plugins() -> tuple[Plugin, ...]:
    """Load and return all installed plug-ins."""
    return tuple(
        Plugin(registry.what, entry, problem) for registry in REGISTRIES for entry, problem in registry.problems()
    )


def probe(_context: Context) -> tuple[Plugin, ...]:
    """Find the plug-ins for the Python that runs hidl, even if another host or site is examined."""
    return find_plugins()


RULES: Rules[tuple[Plugin, ...]] = Rules()


@RULES.rule(
    "HD010",
    "A plug-in cannot be used",
    severity="error",
    why="Packages can add launchers, schedulers, providers and parsers to hidl through entry points. The object of "
    "this entry point cannot be imported, has the wrong type, or its name is already in use. Files that refer to it "
    "fail with this error.",
)
def broken(plugins: tuple[Plugin, ...]) -> Iterator[Evidence]:
    """Report an error for each plug-in that cannot be used."""
    for plugin in plugins:
        if plugin.problem:
            package = plugin.entry.package.partition(" ")[0]
            yield Evidence(plugin.problem, f"upgrade or uninstall {package}")


SUBJECT = Subject(probe, RULES)
