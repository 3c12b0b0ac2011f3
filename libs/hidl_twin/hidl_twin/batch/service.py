"""A stand-in scheduler as a part of a cluster: its files, and its daemon."""

from __future__ import annotations

import sys
from pathlib import Path

import hidl_cli
import hidl_twin
from hidl_cli import process
from hidl_cli.documents import write_text
from hidl_cli.quoting import sh
from hidl_twin import marks
from hidl_twin.batch import settings as settings_
from hidl_twin.batch.settings import Settings
from hidl_twin.batch.store import Store
from hidl_twin.batch.system import System
from hidl_twin.layout import Layout
from hidl_twin.services import Service


def write(system: System, directory: Path, settings: Settings) -> bool:
    """Write what is missing or has changed of the scheduler in ``directory``; returns whether its settings have."""
    (directory / "jobs").mkdir(parents=True, exist_ok=True)
    file = directory / "settings.json"
    changed = not file.is_file() or settings_.load(file) != settings
    if changed:
        settings_.save(file, settings)
    roots = list(dict.fromkeys(str(Path(package.__file__ or "").parents[1]) for package in (hidl_twin, hidl_cli)))
    kind = type(system)
    program = f"""\
# The commands of a stand-in for {system.title}. Written by `hidl cluster up`, which overwrites changes.
import sys
sys.path[:0] = {roots!r}
from hidl_twin.batch.programs import main
from {kind.__module__} import {kind.__name__}
main({kind.__name__}(), {str(directory)!r})
"""
    write_text(directory / f"{system.name}.py", program)
    places = dict.fromkeys(system.commands, "bin") | dict.fromkeys(system.launchers, system.launcher_place)
    for name, place in places.items():
        words = " ".join(sh(word) for word in (sys.executable, "-IS", str(directory / f"{system.name}.py"), name))
        (directory / place).mkdir(parents=True, exist_ok=True)
        write_text(directory / place / name, f'#!/bin/sh\nexec {words} "$@"\n', mode=0o755)
    return changed


class Daemon(Service):
    """It takes jobs and gives them hosts. Jobs that run outlive it."""

    def __init__(self, layout: Layout, system: System) -> None:
        super().__init__(layout)
        self.name = system.daemon
        self._program = layout[system.name] / f"{system.name}.py"

    def start(self) -> None:
        """Start it."""
        log = self.layout.log(self.name)
        command = [sys.executable, "-IS", str(self._program), "daemon"]
        environment = marks.environment(self.layout.directory, self.name)
        process.start_detached(command, cwd=Path("/"), env=environment, stdout=log, stderr=log)

    def answers(self) -> bool:
        """Whether it serves."""
        return Store(self._program.parent).is_served()
