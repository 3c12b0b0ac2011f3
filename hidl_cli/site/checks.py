"""Checks for site files that involve several fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hidl_cli.batch_systems import SSH
from hidl_cli.inputs.check import MAX_REGEX
from hidl_cli.inputs.load import Rules
from hidl_cli.inputs.problems import Fault, clipped, mapping, nearest, one_of
from hidl_cli.launchers import misfit_of_ssh, through_ssh
from hidl_cli.site.directives import Rejection, reject_argument, reject_directive, reject_variable
from hidl_cli.site.schema import OCI, Site


def references(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require that the partitions' node types and the default partition, MPI library and compiler exist."""
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


def stacks_for_gpus(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require at least one unrestricted partition with GPU nodes if stacks are installed for GPUs."""
    if mapping(data, "install").get("device") != "gpu":
        return
    node_types, partitions = mapping(data, "node_types"), mapping(data, "partitions")
    unrestricted = [
        each for each in (mapping(partitions, name) for name in partitions) if each.get("restricted") is not True
    ]
    kinds = [mapping(node_types, str(each.get("node_type"))) for each in unrestricted]
    if not any(kind.get("gpus") or kind.get("detect") for kind in kinds):
        yield Fault(
            ("install", "device"),
            "no unrestricted partition has nodes with GPUs",
            "a partition whose nodes have `gpus`",
        )


def node_limits(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require that a partition's ``min_nodes`` does not exceed its ``max_nodes``."""
    partitions = mapping(data, "partitions")
    for name in partitions:
        fewest, most = (mapping(partitions, name).get(key) for key in ("min_nodes", "max_nodes"))
        if isinstance(fewest, int) and isinstance(most, int) and fewest > most:
            path = ("partitions", name, "min_nodes")
            yield Fault(path, f"min_nodes ({fewest}) exceeds max_nodes ({most})", f"at most {most}")


def conditions(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require that ``match`` has at least one condition and that all its regular expressions are valid."""
    match = data.get("match")
    if match == {}:
        yield Fault(("match",), "empty `match` would match every host", "hostname, cluster or env")
    patterns: dict[tuple[str, ...], Any] = {
        ("match", key): mapping(data, "match").get(key) for key in ("hostname", "cluster")
    }
    for variable, pattern in mapping(mapping(data, "match"), "env").items():
        patterns["match", "env", variable] = pattern
    for path, pattern in patterns.items():
        if isinstance(pattern, str) and len(pattern) <= MAX_REGEX and (problem := _does_not_compile(pattern)):
            message = f"invalid regular expression `{clipped(pattern)}`: {problem}"
            yield Fault(path, message, "a regular expression for Python's `re`")


def launchers(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require launchers that work through ssh if the site has no scheduler."""
    if data.get("scheduler") != SSH:
        return
    names = data.get("launchers")
    for place, name in enumerate(names if isinstance(names, list) else ()):
        if misfit := misfit_of_ssh(name):
            yield Fault(("launchers", place), misfit, one_of(through_ssh()))


def build_caches(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require that caches in OCI registries are not signed, and that user and password are set together."""
    caches = mapping(mapping(data, "spack"), "build_caches")
    for name in caches:
        cache = mapping(caches, name)
        path = ("spack", "build_caches", name)
        if str(cache.get("url")).startswith(OCI):
            for key, value in (("signed", cache.get("signed") is True), ("keys", cache.get("keys"))):
                if value:
                    yield Fault((*path, key), "Spack verifies no signatures in OCI registries", f"no `{key}`")
        if bool(cache.get("user")) != bool(cache.get("password_variable")):
            key = "user" if cache.get("user") else "password_variable"
            yield Fault((*path, key), "`user` and `password_variable` require each other", "both, or neither")


def login_host(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require that the login host matches ``match.hostname``."""
    host, pattern = data.get("login_host"), mapping(data, "match").get("hostname")
    if not isinstance(host, str) or not isinstance(pattern, str) or len(pattern) > MAX_REGEX:
        return
    if not _does_not_compile(pattern) and not re.fullmatch(pattern, host):
        message = f"`{clipped(host)}` does not match `match.hostname`"
        yield Fault(("login_host",), message, f"a host name that matches {clipped(pattern)}, or null")


def tuning(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require that each MPI library reads the variables that the site sets for it, and that their values are valid."""
    libraries = mapping(data, "mpi")
    if data.get("tuning") or any(mapping(libraries, name).get("tuning") for name in libraries):
        from hidl_cli.tuning.judge import check_site  # importing this takes 13 ms, so it is done only if needed

        yield from check_site(data)


def job_scripts(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Reject scheduler options, launcher options and variables that hidl itself sets for each run."""
    policies, libraries = mapping(data, "policies"), mapping(data, "mpi")
    scheduler, directives = data.get("scheduler"), policies.get("directives")
    for number, text in enumerate(directives if isinstance(directives, list) else ()):
        if isinstance(text, str) and isinstance(scheduler, str):
            found = reject_directive(scheduler, text, policies)
            yield from _rejected(("policies", "directives", number), found)
    for path, each in [(("policies",), policies), *_of_libraries(libraries)]:
        for variable in mapping(each, "environment"):
            yield from _rejected((*path, "environment", variable), reject_variable(variable), on_key=True)
        for launcher, words in mapping(each, "launcher_arguments").items():
            for number, word in enumerate(words if isinstance(words, list) else ()):
                if isinstance(word, str):
                    found = reject_argument(launcher, word)
                    yield from _rejected((*path, "launcher_arguments", launcher, number), found)


def _of_libraries(libraries: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield each MPI library's settings, and its settings for runs on GPUs, with their paths."""
    for name in libraries:
        library = mapping(libraries, name)
        yield ("mpi", name), library
        yield ("mpi", name, "with_gpus"), mapping(library, "with_gpus")


def _rejected(path: tuple[str | int, ...], found: Rejection | None, *, on_key: bool = False) -> Iterator[Fault]:
    if found is not None:
        yield Fault(path, found.message, found.instead, on_key=on_key)


def _dangling(path: tuple[str, ...], what: str, name: str, known: Mapping[str, Any]) -> Fault:
    return Fault(path, f"unknown {what} `{clipped(name)}`", one_of(known), nearest(name, known))


def _does_not_compile(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None


#: The model and the checks for site files.
RULES = Rules(
    "site",
    Site,
    (references, stacks_for_gpus, node_limits, conditions, launchers, build_caches, login_host, tuning, job_scripts),
    own=frozenset({"name", "extends", "match", "login_host"}),
)
