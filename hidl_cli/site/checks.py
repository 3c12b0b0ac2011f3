"""What must hold across the fields of a site, beside its schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hidl_cli.inputs.faults import Fault, mapping, nearest, one_of
from hidl_cli.inputs.fields import MAX_REGEX
from hidl_cli.inputs.findings import clipped
from hidl_cli.inputs.load import Rules
from hidl_cli.site.schema import Site


def references(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Partitions name a node type; the default partition and the default MPI library are there."""
    node_types, partitions = mapping(data, "node_types"), mapping(data, "partitions")
    for name in partitions:
        node_type = mapping(partitions, name).get("node_type")
        if isinstance(node_type, str) and node_type not in node_types:
            yield _dangling(("partitions", name, "node_type"), "node type", node_type, node_types)
    defaults = (
        ("default_partition", "partition", partitions),
        ("default_mpi", "MPI library", mapping(data, "mpi")),
        ("default_compiler", "compiler", mapping(data, "compilers")),
    )
    for key, what, known in defaults:
        default: Any = data.get(key)
        if isinstance(default, str) and default not in known:
            yield _dangling((key,), what, default, known)


def node_limits(data: Mapping[str, Any]) -> Iterator[Fault]:
    """A partition's smallest job is not larger than its largest."""
    partitions = mapping(data, "partitions")
    for name in partitions:
        fewest, most = (mapping(partitions, name).get(key) for key in ("min_nodes", "max_nodes"))
        if isinstance(fewest, int) and isinstance(most, int) and fewest > most:
            path = ("partitions", name, "min_nodes")
            yield Fault(path, f"min_nodes ({fewest}) is more than max_nodes ({most})", f"at most {most}")


def conditions(data: Mapping[str, Any]) -> Iterator[Fault]:
    """``match`` holds at least one condition, and its regular expressions compile."""
    match = data.get("match")
    if match == {}:
        yield Fault(("match",), "`match` holds no condition, so it would hold everywhere", "hostname, cluster or env")
    patterns: dict[tuple[str, ...], Any] = {
        ("match", key): mapping(data, "match").get(key) for key in ("hostname", "cluster")
    }
    for variable, pattern in mapping(mapping(data, "match"), "env").items():
        patterns["match", "env", variable] = pattern
    for path, pattern in patterns.items():
        if isinstance(pattern, str) and len(pattern) <= MAX_REGEX and (problem := _does_not_compile(pattern)):
            message = f"`{clipped(pattern)}` is no regular expression: {problem}"
            yield Fault(path, message, "a regular expression of Python's `re`")


def tuning(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Each MPI library reads the variables that the site sets for it, and their values fit."""
    libraries = mapping(data, "mpi")
    if any(mapping(libraries, name).get("tuning") for name in libraries):
        from hidl_cli.tuning import checks  # the catalogue is read for files that have any tuning

        yield from checks.of_site(data)


def _dangling(path: tuple[str, ...], what: str, name: str, known: Mapping[str, Any]) -> Fault:
    return Fault(path, f"there is no {what} called `{clipped(name)}`", one_of(known), nearest(name, known))


def _does_not_compile(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None


#: What a site's file must satisfy.
RULES = Rules("site", Site, (references, node_limits, conditions, tuning), own=frozenset({"name", "extends", "match"}))
