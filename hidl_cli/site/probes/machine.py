"""This host itself: what :mod:`hidl_cli.site.machine` reads, and the processor's name where only ``lscpu`` knows it."""

from __future__ import annotations

import json
from dataclasses import replace

from hidl_cli.site.machine import Machine, machine
from hidl_cli.site.probes.host import Host


def probe(host: Host, found: Machine | None = None) -> Machine:
    """The machine; ARM's kernel gives no model name, but ``lscpu`` decodes the part numbers."""
    found = found or machine()
    return found if found.cpu else replace(found, cpu=_model(host.ask("lscpu", "--json")))


def _model(text: str | None) -> str | None:
    """``Model name`` of ``lscpu --json``: a list of fields, which newer versions nest."""
    try:
        document = json.loads(text or "")
    except ValueError:
        return None
    waiting = [document.get("lscpu")] if isinstance(document, dict) else []
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += reversed(part)
        elif isinstance(part, dict):
            if part.get("field") == "Model name:" and isinstance(part.get("data"), str):
                return str(part["data"]).strip() or None
            waiting.append(part.get("children"))
    return None
