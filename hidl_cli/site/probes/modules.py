"""The modules that a site offers, as ``module -t avail`` lists them (Lmod and Environment Modules)."""

from __future__ import annotations

import re

from hidl_cli.site.probes.host import Host

_SECONDS = 20.0  # a cold cache on a parallel file system
_MARKS = re.compile(r"\((?:[^()]*:)?(?:default|D|L)(?::[^()]*)?\)$|<[A-Za-z]+>$")


def available(host: Host) -> tuple[str, ...] | None:
    """Every module's name with its version; None where there is no module command, or it gives no answer.

    On a site of module trees these are the modules that can be loaded now, beside the compiler that is loaded.
    """
    if lmod := host.environment.get("LMOD_CMD"):
        text = host.ask(lmod, "bash", "--terse", "avail", seconds=_SECONDS, stderr=True)
    elif tcl := host.environment.get("MODULES_CMD"):
        text = host.ask(tcl, "bash", "avail", "--terse", seconds=_SECONDS, stderr=True)
    else:
        return None
    return None if text is None else tuple(_MARKS.sub("", line.strip()) for line in text.splitlines())
