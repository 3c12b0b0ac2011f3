"""Sites by name, or the site that hidl runs on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hidl_cli.inputs.load import load
from hidl_cli.site.checks import RULES
from hidl_cli.site.detect import choose, detect
from hidl_cli.site.machine import gpus, machine
from hidl_cli.site.schema import NodeType, Site


def load_site(name: str | None = None) -> Site:
    """The site of that name; for None the detected site, else ``local``.

    What it extends is merged, and node types with ``detect: true`` are filled from this machine. Raises ``UsageError``
    for an unknown name and ``InvalidInput`` for a faulty file, or where more than one site matches.
    """
    return resolve(load(RULES, name or choose(detect()) or "local"))


def resolve(site: Site) -> Site:
    """The site with every null of its ``detect: true`` node types filled from this machine, as far as it tells."""
    node_types = {name: _filled(node) if node.detect else node for name, node in site.node_types.items()}
    return site.model_copy(update={"node_types": node_types})


def _filled(node: NodeType) -> NodeType:
    facts: dict[str, Any] = asdict(machine())
    if node.gpus is None or (node.gpus > 0 and node.gpu_model is None):  # asking costs up to seconds
        found = gpus()
        facts |= {"gpus": found.gpus, "gpu_model": found.gpu_model}
    return node.model_copy(update={key: value for key, value in facts.items() if getattr(node, key) is None})
