"""The commands of a stand-in by name: what the scripts in its ``bin`` run."""

from __future__ import annotations

import sys
from pathlib import Path

from hidl_twin.batch import daemon, host
from hidl_twin.batch.store import Store
from hidl_twin.batch.system import System


def main(system: System, directory: str) -> None:
    """Run the command that is the first argument, for the scheduler in ``directory``."""
    name, *arguments = sys.argv[1:]
    store = Store(Path(directory))
    if name in system.commands:
        store.called(name, arguments)
        if not store.answers(name):
            system.unanswered(store, name)
    try:
        if name == "daemon":
            daemon.serve(system, store, arguments)
        elif name == "host":
            host.run(system, store, arguments)
        else:
            {**system.commands, **system.launchers, **system.internal}[name](store, arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # `bjobs | head`
        sys.stderr.close()
