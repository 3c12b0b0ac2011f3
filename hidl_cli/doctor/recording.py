"""Record a machine for somebody who looks into it elsewhere, and examine one that was recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.doctor.cached_host import CachedHost
from hidl_cli.doctor.examine import Examined, contexts, examine
from hidl_cli.errors import SchedulerUnreachable, UsageError
from hidl_cli.site.detect import choose, detect
from hidl_cli.site.load import load_site
from hidl_cli.site.machine import machine
from hidl_cli.site.outputs.folder import survey_folder
from hidl_cli.site.probes.host import ThisHost
from hidl_cli.site.probes.recorded import DESCRIPTION, RecordingHost, load_host
from hidl_cli.site.probes.survey import survey
from hidl_cli.stack.installation import roots


def collect(directory: Path, site: str | None) -> Sequence[str]:
    """Ask this machine all that ``hidl site new``, ``detect`` and ``doctor`` ask, and write it to ``directory``.

    ``site``: its name, None for the detected one. Returns the names of the files.
    """
    found = load_site(site)
    host = RecordingHost(CachedHost(ThisHost()))
    this = machine()
    try:
        survey(host, this)
    except SchedulerUnreachable:  # recorded too
        survey(host, this, alone=True)
    detect(host, thorough=True)
    examine(contexts(found, roots=roots(found), host=host))
    return host.write(directory, this)


def examine_recorded(directory: Path, site: str | None) -> tuple[Examined, str, str]:
    """Examine a recorded machine, or saved outputs; also return the names of its site and of the host.

    ``site``: None for the one whose ``match`` holds for the recording; ``UsageError`` if there is none.
    """
    saved = None
    if directory.is_dir() and not (directory / DESCRIPTION).is_file():
        saved = survey_folder(directory).batch
    host = load_host(directory)
    name = site or choose(detect(host))
    if name is None:
        raise UsageError(
            f"no site matches the machine in {directory}",
            hint=f"name one with --site; hidl site new --from {directory} drafts one",
        )
    found = load_site(name)
    if saved is not None and saved.scheduler != found.scheduler:
        raise UsageError(
            f"{directory} holds outputs of {SYSTEMS[saved.scheduler].title}, and the scheduler of site {name} is "
            f"{found.scheduler}",
            hint="name the site that they are of with --site",
        )
    return examine(contexts(found, roots=(Path(os.devnull),), host=host, saved=saved)), found.name, host.hostname
