"""Recognize configuration files, merge what they describe, and draft a site file from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hidl_cli.errors import InvalidInput, UsageError
from hidl_cli.inputs import yamlfile
from hidl_cli.inputs.problems import clipped
from hidl_cli.inputs.source import plain, read_source
from hidl_cli.launchers import LAUNCHERS
from hidl_cli.redaction import redact
from hidl_cli.site.checks import RULES
from hidl_cli.site.configurations import benchpark, reframe, spack
from hidl_cli.site.configurations.carried import ANY_NODES, CarriedValue, ConfigurationFile, Reader
from hidl_cli.site.draft import SiteDraft, simple, unique
from hidl_cli.site.load import unknown_facts
from hidl_cli.site.probes.software import same_version
from hidl_cli.site.schema import NodeType, Site
from hidl_cli.site.yamledit import YamlItem, document

_DEEPEST = 50
_MOST_FILES = 50
#: Files to read in a directory and in the subdirectories ``_BELOW``. Python files must be passed by name.
_NAMES = (
    "packages.yaml", "compilers.yaml", "spack.yaml", "network.yaml", "environments.yaml", "config.yaml",
    "variables.yaml", "software.yaml", "system_definition.yaml", "hardware_description.yaml", "system_id.yaml",
)  # fmt: skip
_BELOW = ("auxiliary_software_files", "auxiliary_software_files/gcc")
_SUPPORTED = (
    "Spack's packages.yaml, compilers.yaml or spack.yaml, a Stackinator recipe, ReFrame's settings, or Benchpark's "
    "description of a system"
)
_ENTRIES = ("node_types", "partitions", "mpi", "compilers", "externals")
_SECTIONS = (
    "name", "title", "sources", "match", "interconnect", "scheduler", "launchers", "node_types", "partitions",
    "default_partition", "mpi", "default_mpi", "policies", "containers", "compilers", "default_compiler",
    "externals", "spack",
)  # fmt: skip
#: Facts that the draft lists for every node type. Users can fill in those that are null.
_OF_NODES = ("cpu", "arch", "sockets", "cores", "threads_per_core", "memory_gib", "gpus", "count")
_MISSING = "not in these files"


class UnknownKind(InvalidInput):
    """A file that no reader supports."""


@dataclass(frozen=True)
class _Kind:
    """A kind of configuration file: the tool, a test for its contents, and its reader."""

    tool: str
    fits: Callable[[Path, Mapping[str, Any]], bool]
    read: Reader


def _has(key: str, kind: type | tuple[type, ...] = dict) -> Callable[[Path, Mapping[str, Any]], bool]:
    return lambda _file, data: isinstance(data.get(key), kind)


def _named(name: str) -> Callable[[Path, Mapping[str, Any]], bool]:
    return lambda file, _data: file.name == name


_KINDS = (
    _Kind("ReFrame settings", _has("systems", list), reframe.read_settings),
    _Kind("Spack environment", _has("spack"), spack.read_environment),
    _Kind("Stackinator network", lambda _, data: {"mpi", "packages"} <= {*data}, spack.read_recipe_network),
    _Kind("Spack packages", lambda _, data: "packages" in data or "packages:" in data, spack.read_packages),
    _Kind("Spack compilers", _has("compilers", list), spack.read_compilers),
    _Kind("Benchpark variables", _has("variables"), benchpark.read_variables),
    _Kind("Benchpark system definition", _has("system_definition"), benchpark.read_definition),
    _Kind("Benchpark software", _has("software"), benchpark.read_software),
    _Kind("Benchpark system", _has("system"), benchpark.read_id),
    _Kind("Stackinator compilers", _named("compilers.yaml"), spack.read_recipe_compilers),
    _Kind("Stackinator environments", _named("environments.yaml"), spack.read_recipe_environments),
    _Kind("Stackinator recipe", lambda file, data: file.name == "config.yaml" and "name" in data, spack.read_recipe),
)
_BENCHPARK = _Kind("Benchpark system", lambda *_: True, benchpark.read_system)


def configuration_files(places: Sequence[Path]) -> tuple[Path, ...]:
    """Return these files, and the configuration files in these directories.

    Returns nothing for a single directory without configuration files, which should contain saved outputs.

    Raises ``UsageError`` if one does not exist, or if there are files and a folder without configuration files.
    """
    found: list[Path] = []
    others: list[Path] = []
    for place in places:
        if not place.is_dir():
            if not place.exists():
                raise UsageError(f"{place} not found", hint=f"give {_SUPPORTED}, or a folder of saved outputs")
            found.append(place)
            continue
        below = [place / name for name in _NAMES] + [place / part / name for part in _BELOW for name in _NAMES]
        inside = [file for file in below if file.is_file()]
        found += inside
        others += [] if inside else [place]
    if others and (found or len(others) > 1):
        raise UsageError(
            f"{others[0]} contains no configuration file",
            hint="give saved outputs or a recording as the only --from, or files: " + ", ".join(_NAMES),
        )
    if len(found) > _MOST_FILES:
        raise UsageError(f"{len(found)} files exceed the limit of {_MOST_FILES}")
    return tuple(dict.fromkeys(found))


def draft_from_files(
    files: Sequence[Path],
    name: str | None,
    *,
    named: Collection[Path] | None = None,
    isolated: bool = True,
) -> tuple[str, Callable[[str], SiteDraft]]:
    """Read configuration files. Return the machine's name, and a function that drafts a site with a given name.

    Args:
        files: The files, the most reliable first: if they contradict each other, the first one counts.
        name: Name of the machine to describe if a file describes several; None if there is only one.
        named: Files that must be of a supported kind; others, found in directories, are skipped. None requires all.
        isolated: Whether to reject a ``settings.py`` that cannot be isolated on this machine.

    Raises:
        InvalidInput: A file cannot be read or is of no supported kind.
        MissingPrecondition: A ``settings.py`` cannot be isolated.
        UsageError: No file contains the name of the machine, and ``name`` is None.
    """
    read: list[ConfigurationFile] = []
    remarks: list[str] = []
    names = _short_names(files)
    for file in files:
        try:
            kind, data, remark = _parsed(file, isolated=isolated)
        except UnknownKind:
            if named is None or file in named:
                raise
            remarks.append(f"skipped {names[file]}: it is of no supported kind")
            continue
        remarks += [remark] if remark else []
        one = ConfigurationFile(names[file], data, kind.tool)
        kind.read(one, name)
        read.append(one)
    if not read:
        raise InvalidInput(f"{', '.join(map(str, files))}: no file is of a supported kind", hint=f"give {_SUPPORTED}")
    cluster = next((one.cluster for one in read if one.cluster), name)
    if cluster is None:
        raise UsageError(
            f"{', '.join(names.values())}: the name of the machine is not in these files",
            hint=f"name the site: hidl site new NAME --from {files[0]}",
        )
    return cluster, lambda chosen: _draft(read, chosen, remarks)


def _short_names(files: Sequence[Path]) -> dict[Path, str]:
    """Return the names of the files, with their directories if they would otherwise be the same."""
    names = [file.name for file in files]
    return {file: file.name if names.count(file.name) == 1 else f"{file.parent.name}/{file.name}" for file in files}


def _parsed(file: Path, *, isolated: bool) -> tuple[_Kind, Any, str | None]:
    """Recognize and parse a file. The last value is a remark about how it was read."""
    if file.suffix == ".py":
        text = read_source(file).text
        if benchpark.is_system(file, text):
            return _BENCHPARK, benchpark.parse_system(file.name, text), None
        found, remark = reframe.execute_settings(file, required=isolated)
        return _kind_of(file, _bounded(file, found)), found, remark
    if file.suffix == ".json":
        try:
            found = json.loads(read_source(file).text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{file} is not valid JSON: {clipped(str(error), 200)}") from error
        return _kind_of(file, _bounded(file, found)), found, None
    parsed = yamlfile.read(file)
    if parsed.problems or parsed.root is None:
        raise InvalidInput(f"{file} cannot be read", problems=parsed.problems)
    found = plain(parsed.root)
    return _kind_of(file, found), found, None


def _kind_of(file: Path, data: Any) -> _Kind:
    if isinstance(data, dict):
        for kind in _KINDS:
            if kind.fits(file, data):
                return kind
    raise UnknownKind(f"{file} is not a supported configuration file", hint=f"give {_SUPPORTED}")


def _bounded(file: Path, data: Any) -> Any:
    """Return the data. Raises ``InvalidInput`` if it is nested too deeply or has too many values."""
    level, count = [data], 0
    for _ in range(_DEEPEST):
        level = [each for one in level if isinstance(one, (dict, list)) for each in _parts(one)]
        count += len(level)
        if not level and count <= yamlfile.MAX_VALUES:
            return data
        if count > yamlfile.MAX_VALUES:
            break
    raise InvalidInput(f"{file} exceeds {_DEEPEST} levels or {yamlfile.MAX_VALUES:,} values")


def _parts(one: dict[Any, Any] | list[Any]) -> list[Any]:
    return list(one.values()) if isinstance(one, dict) else one


def _draft(read: Sequence[ConfigurationFile], name: str, remarks: Sequence[str]) -> SiteDraft:
    merged = _Merged()
    for file in read:
        merged.add(file)
    values = merged.finish()
    data, dropped = _valid(name, values)
    kept = {path: value for path, value in values.items() if _contains(data, path)}
    left_out = [redact(line) for line in (*merged.left_out, *dropped)]
    left_out += [line for file in read for line in file.left_out()]
    site = Site.model_validate(data)
    missing = [*(".".join(path) for path in unknown_facts(site))]
    if not site.partitions:
        missing.append("`hidl site new` on a login node of the machine detects its scheduler, nodes and partitions")
    sources = [f"{file.name}: {file.tool}, {_counted(file)}" for file in read]
    head = [
        f"Drafted by `hidl site new` from {', '.join(file.name for file in read)}.",
        "Comments name the sources of the values below them; null means unknown. Fill in and correct what you can:",
        f"`hidl site check {name}` lists the remaining unknown values.",
        *(f"- {remark}" for remark in remarks),
        *(f"- left out: {line}" for line in left_out),
    ]
    text = document(list(_items(data, kept)), head=head)
    shown = (*remarks, *(f"left out: {line}" for line in left_out))
    return SiteDraft(name, text, shown, tuple(sources), tuple(missing))


def _counted(file: ConfigurationFile) -> str:
    count = len({value.path[:2] for value in file.values})
    return f"{count} {'entry' if count == 1 else 'entries'} carried over"


class _Merged:
    """The values of several files, by path in the site file. The first file that contains a value takes precedence."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], CarriedValue] = {}
        self.left_out: list[str] = []

    def add(self, file: ConfigurationFile) -> None:
        """Add a file's values. MPI libraries and compilers of another version become entries of their own."""
        renamed: dict[tuple[str, ...], tuple[str, ...]] = {}
        for value in file.values:
            if value.path[0] not in ("mpi", "compilers") or value.path[2:] != ("version",):
                continue
            known = self.values.get(value.path)
            if known is not None and not same_version(known.value, value.value):
                taken = [path[1] for path in self.values if path[0] == value.path[0]]
                key = unique(f"{value.path[1]}-{simple(value.value)}", taken)
                renamed[value.path[:2]] = (value.path[0], key)
        for value in file.values:
            path = (*renamed.get(value.path[:2], value.path[:2]), *value.path[2:])
            known = self.values.get(path)
            if known is None:
                self.values[path] = replace(value, path=path)
            elif path == ("launchers",):
                added = [one for one in value.value if one not in known.value]
                self.values[path] = replace(known, value=[*known.value, *added])
            else:
                self._report(replace(value, path=path), known)

    def _report(self, value: CarriedValue, known: CarriedValue) -> None:
        """Report a value that contradicts one of an earlier file."""
        one, other = str(value.value), str(known.value)
        if one != other and not (value.path[-1] == "version" and same_version(one, other)):
            key = ".".join(value.path)
            self.left_out.append(
                f"{value.why}: {key} is {clipped(one, 100)} here, but {clipped(other, 100)} in {known.why}"
            )

    def finish(self) -> dict[tuple[str, ...], CarriedValue]:
        """Return the merged values, after replacing placeholders for node types and specs of defaults with names."""
        types = list(dict.fromkeys(path[1] for path in self.values if path[0] == "node_types"))
        own = [one for one in types if one != ANY_NODES]
        only = own[0] if len(own) == 1 else "node"
        general = [value for path, value in self.values.items() if path[:2] == ("node_types", ANY_NODES)]
        values = {path: value for path, value in self.values.items() if value not in general}
        for value in general:
            path = ("node_types", only, *value.path[2:])
            if len(own) > 1:
                self.left_out.append(f"{value.why} (the site has several node types)")
            elif path in values:
                self._report(replace(value, path=path), values[path])
            else:
                values[path] = replace(value, path=path)
        kinds = {path[1] for path in values if path[0] == "node_types"}
        for path, value in list(values.items()):
            if path[0] == "partitions" and path[-1] == "node_type":
                kind = only if value.value == ANY_NODES else str(value.value)
                values[path] = replace(value, value=kind)
                if kind not in kinds:
                    node = ("node_types", kind, "gpus")
                    values[node] = CarriedValue(node, None, value.why)
        self._name_defaults(values)
        return values

    def _name_defaults(self, values: dict[tuple[str, ...], CarriedValue]) -> None:
        """Replace specs of default compilers and MPI libraries with the keys of their entries."""
        for section, default in (("mpi", "default_mpi"), ("compilers", "default_compiler")):
            value = values.pop((default,), None)
            if value is None:
                continue
            spec = spack.parse_spec(str(value.value))
            keys = list(dict.fromkeys(path[1] for path in values if path[0] == section))
            fitting = [key for key in keys if spec and key.startswith(spec.name)]
            exact = [
                key
                for key in fitting
                if spec
                and spec.version
                and (found := values.get((section, key, "version"))) is not None
                and same_version(str(found.value), spec.version)
            ]
            if chosen := next(iter(exact or ([] if spec and spec.version else fitting)), None):
                values[default,] = replace(value, path=(default,), value=chosen)
            else:
                self.left_out.append(f"{value.why} (no entry in these files)")


def _valid(name: str, values: dict[tuple[str, ...], CarriedValue]) -> tuple[dict[str, Any], list[str]]:
    """Return the site's data without invalid values, and a line for each value that was left out as invalid."""
    kept, dropped = dict(values), list[str]()
    while True:
        data = _nested(name, kept)
        faults = list(_faults(data))
        if not faults:
            return data, dropped
        for place, reason in faults:
            bad = [path for path in kept if path[: len(place)] == place[: len(path)]]
            if not bad:  # no file provides this key, so its entry is incomplete
                bad = [path for path in kept if path[:2] == place[:2]]
            if not bad:
                raise InvalidInput(f"no site can be drafted from these files: {'.'.join(place)}: {reason}")
            for path in bad:
                value = kept.pop(path)
                dropped.append(f"{value.why}: {'.'.join(path)}: {clipped(str(value.value))} ({reason})")


def _faults(data: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the paths of invalid values, and why they are invalid."""
    try:
        Site.model_validate(data)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            yield tuple(str(part) for part in one["loc"] if part != "[key]"), str(one["msg"])
        return
    for check in RULES.checks:
        for fault in check(data):
            yield tuple(str(part) for part in fault.path), fault.message


def _nested(name: str, values: Mapping[tuple[str, ...], CarriedValue]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": name,
        "title": f"{name}, drafted by hidl",
        "scheduler": None,
        "launchers": [],
        "node_types": {},
        "partitions": {},
        "default_partition": None,
    }
    for path, value in values.items():
        here = data
        for step in path[:-1]:
            here = here.setdefault(step, {})
        here[path[-1]] = value.value
    data["launchers"] = [one for one in data["launchers"] if one in LAUNCHERS]
    if len(data["partitions"]) == 1:
        data["default_partition"] = next(iter(data["partitions"]))
    data["sources"] = list(dict.fromkeys(value.why.partition(":")[0] for value in values.values()))
    return data


def _contains(data: Mapping[str, Any], path: Sequence[str]) -> bool:
    here: Any = data
    for step in path:
        if not isinstance(here, dict) or step not in here:
            return False
        here = here[step]
    return True


def _items(data: Mapping[str, Any], values: Mapping[tuple[str, ...], CarriedValue]) -> Iterator[YamlItem]:
    """Return the keys of the site file with the sources of their values."""
    for key in _SECTIONS:
        if key not in data:
            if key == "interconnect":
                yield YamlItem(key, None, _MISSING)
            continue
        value = data[key]
        if key in _ENTRIES and value:
            yield YamlItem(key, tuple(_entry(key, name, found, values) for name, found in value.items()))
        elif isinstance(value, dict):
            yield YamlItem(key, tuple(_mapping((key,), value, values)), "" if value else _MISSING)
        else:
            source = values.get((key,))
            empty = value is None or value == []
            yield YamlItem(key, value, source.why if source else _MISSING if empty else "")


def _entry(
    section: str, name: str, found: Mapping[str, Any], values: Mapping[tuple[str, ...], CarriedValue]
) -> YamlItem:
    sources: dict[str, list[str]] = {}
    for path, value in values.items():
        if path[:2] == (section, name):
            file, _, detail = value.why.partition(": ")
            sources.setdefault(file, []).append(detail)
    why = "; ".join(f"{file}: {', '.join(dict.fromkeys(details))}" for file, details in sources.items())
    shown = dict(found)
    if section == "node_types":
        extra = [key for key in NodeType.model_fields if key in found and key not in _OF_NODES]
        shown = {key: found.get(key) for key in (*_OF_NODES, *extra)}
    elif section == "partitions":
        shown |= {key: found.get(key) for key in ("max_nodes", "max_wall")}
    return YamlItem(name, tuple(YamlItem(key, value) for key, value in shown.items()), why)


def _mapping(
    path: tuple[str, ...], found: Mapping[str, Any], values: Mapping[tuple[str, ...], CarriedValue]
) -> Iterator[YamlItem]:
    for key, value in found.items():
        at = (*path, key)
        if isinstance(value, dict):
            yield YamlItem(key, tuple(_mapping(at, value, values)))
        else:
            yield YamlItem(key, value, values[at].why if at in values else "")
