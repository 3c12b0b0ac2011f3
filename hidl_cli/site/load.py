"""Sites by name, or the site that hidl runs on."""

from __future__ import annotations

from hidl_cli.inputs.load import Rules, load
from hidl_cli.site.checks import conditions, node_limits, references
from hidl_cli.site.machine import describe
from hidl_cli.site.schema import NodeType, Site

RULES = Rules("site", Site, (references, node_limits, conditions), own=frozenset({"name", "extends", "match"}))


def load_site(name: str | None = None) -> Site:
    """The site of that name; for None the detected site, else ``local``.

    What it extends is merged, and node types with ``detect: true`` are filled from this machine. Raises ``UsageError``
    for an unknown name and ``InvalidInput`` for a faulty file.
    """
    return resolve(load(RULES, name or "local"))


def resolve(site: Site) -> Site:
    """The site with every null of its ``detect: true`` node types filled from this machine."""
    node_types = {name: _filled(node) if node.detect else node for name, node in site.node_types.items()}
    return site.model_copy(update={"node_types": node_types})


def _filled(node: NodeType) -> NodeType:
    facts = describe()
    return node.model_copy(update={key: value for key, value in facts.items() if getattr(node, key) is None})
