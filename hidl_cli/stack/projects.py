"""Requirements in files of other tools: pyproject.toml, uv.lock, pylock.toml, and conda's environment.yml."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from hidl_cli.redaction import redact
from hidl_cli.stack.references import read_toml
from hidl_cli.stack.schema import WHEEL_EXPECTED, UnusableRequirement, applies

#: Packages with separate builds for CPUs and GPUs. hidl selects the build, and the file's hashes may belong to
#: another one.
_BUILDS = ("torch", "torchvision", "torchaudio")
#: Packages that a CUDA build of torch requires.
_OF_CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")
_PYPI = ("https://pypi.org/simple", "https://pypi.org/simple/")
_CONDA = ("micromamba", "mamba", "conda")
_PROJECT_EXPECTED = "a [project] table with `dependencies`"


@dataclass(frozen=True)
class ProjectFile:
    """The requirements in another tool's file, such as pyproject.toml.

    Attributes:
        lines: Requirements and options in pip's format.
        constraints: Version constraints in pip's format.
        indexes: URLs of package indexes.
        left_out: A note about packages that are left out, or an empty string.
    """

    lines: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    left_out: str = ""


def read_project(file: Path, text: str, markers: Mapping[str, str] | None = None) -> ProjectFile | None:
    """Return the requirements in another tool's file, or None if it is a requirements file in pip's format.

    Args:
        file: The file.
        text: Its content.
        markers: Values of environment markers on the nodes (default: those of this Python).

    Raises:
        UnusableRequirement: The file is damaged, has no requirements that can be read, or has settings that are
            unsupported.
    """
    if file.suffix in (".yml", ".yaml"):
        return _environment(file, text)
    if file.suffix not in (".toml", ".lock"):
        return None
    try:
        data = read_toml(text)
    except ValueError as error:
        raise UnusableRequirement(f"{file}: {error}", "TOML") from None
    reader = _Toml(file, text, data, {"python_full_version": platform.python_version(), **(markers or {})})
    if isinstance(data.get("package"), list) and "requires-python" in data:
        reader.check_python(data["requires-python"])
        return reader.uv_lock()
    if isinstance(data.get("packages"), list) and "lock-version" in data:
        reader.check_python(data.get("requires-python"))
        return _pylock(data)
    reader.check_python(data.get("project", {}).get("requires-python"))
    return reader.pyproject()


@dataclass(frozen=True)
class _Toml:
    """A TOML file, and the values of environment markers on the nodes."""

    file: Path
    text: str
    data: Mapping[str, Any]
    markers: Mapping[str, str]

    def error(self, word: str, message: str, expected: str) -> UnusableRequirement:
        """Return an error with the number of the first line that contains ``word``."""
        lines = self.text.splitlines()
        number = next((number for number, line in enumerate(lines, start=1) if word in line), 1)
        return UnusableRequirement(f"{self.file}:{number}: {message}", expected)

    def check_python(self, requires: str | None) -> None:
        """Raise ``UnusableRequirement`` if the project does not support the nodes' Python."""
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        version = self.markers["python_full_version"]
        try:
            if not requires or SpecifierSet(requires).contains(version, prereleases=True):
                return
        except InvalidSpecifier:
            raise self.error("requires-python", f"invalid requires-python {requires!r}", ">=3.10") from None
        raise self.error(
            "requires-python",
            f"the project requires Python {requires}, but the stack's is {'.'.join(version.split('.')[:2])}",
            "another Python (`install.python` in the site's file)",
        )

    def applies(self, marker: str | None) -> bool:
        """Return True if a marker holds on the nodes."""
        try:
            return applies(marker, self.markers)
        except ValueError:
            raise self.error(marker or "", f"invalid marker {marker!r}", "a marker (PEP 508)") from None

    def pyproject(self) -> ProjectFile:
        """Return the dependencies in ``[project]``, with the sources, constraints and indexes in ``[tool.uv]``."""
        project = self.data.get("project", {})
        if "dependencies" in project.get("dynamic", []):
            raise UnusableRequirement(
                f"the dependencies of {self.file} are computed by its build",
                f"the project itself, passed as --with {self.file.parent}",
            )
        if "dependencies" not in project:
            poetry = "; for Poetry: poetry export -o requirements.txt" if "poetry" in self.data.get("tool", {}) else ""
            raise UnusableRequirement(f"{self.file} has no dependencies", f"{_PROJECT_EXPECTED}{poetry}")
        uv = self.data.get("tool", {}).get("uv", {})
        if "override-dependencies" in uv:
            raise self.error(
                "override-dependencies", "override-dependencies is unsupported", "packages whose requirements fit"
            )
        sources = {_canonical(name): source for name, source in uv.get("sources", {}).items()}
        lines = tuple(self._with_source(text, sources) for text in project["dependencies"])
        indexes = tuple(each["url"] for each in uv.get("index", []) if "url" in each and not each.get("explicit"))
        return ProjectFile(lines, tuple(uv.get("constraint-dependencies", ())), indexes)

    def _with_source(self, text: str, sources: Mapping[str, Any]) -> str:
        """Return the requirement with the source in ``tool.uv.sources`` that applies on the nodes, if there is one."""
        from packaging.requirements import InvalidRequirement, Requirement

        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise self.error(text, f"invalid requirement {text!r}", str(error).splitlines()[0]) from None
        name = requirement.name
        given = sources.get(_canonical(name), ())
        # Sources for an extra or a group do not apply to the dependencies of the project.
        source = next(
            (
                each
                for each in ([given] if isinstance(given, Mapping) else given)
                if not {"extra", "group"} & each.keys() and self.applies(each.get("marker"))
            ),
            None,
        )
        if source is None:
            return text
        extras = _extras(sorted(requirement.extras))
        marker = f" ; {requirement.marker}" if requirement.marker else ""
        subdirectory = f"#subdirectory={source['subdirectory']}" if "subdirectory" in source else ""
        if "index" in source:
            if _canonical(name) in _BUILDS:  # hidl selects the build
                return text
            raise self.error(
                name,
                f"{name} is restricted to the index {source['index']}, but a stack takes packages from all its indexes",
                "the project's uv.lock (written by `uv lock`), whose hashes select the files",
            )
        if "git" in source:
            revision = next((source[key] for key in ("rev", "tag", "branch") if key in source), None)
            return f"{name}{extras} @ git+{source['git']}{f'@{revision}' if revision else ''}{subdirectory}{marker}"
        if "url" in source:
            return f"{name}{extras} @ {source['url']}{subdirectory}{marker}"
        if "path" in source:
            return f"{(self.file.parent / source['path']).absolute()}{extras}{marker}"
        raise self.error(name, f"unsupported source of {name}: {', '.join(source)}", "git, url, path or index")

    def uv_lock(self) -> ProjectFile:
        """Return the project's dependencies as requirements, and the locked versions as constraints."""
        packages: list[Mapping[str, Any]] = self.data["package"]
        members = self.data.get("manifest", {}).get("members", [])
        roots = [each for each in packages if _place(each) == "."]
        roots = roots or [each for each in packages if each["name"] in members]
        if not roots:
            raise UnusableRequirement(f"{self.file} has no project", "the uv.lock that `uv lock` writes for a project")
        reached = self._reached(packages, roots)
        # uv installs the dependencies of virtual packages, but not the packages themselves.
        requiring = [*roots, *(each for each in reached if "virtual" in each["source"])]
        named = {each["name"] for each in requiring}
        lines: list[str] = []
        for edge in [each for package in requiring for each in package.get("dependencies", [])]:
            if edge["name"] not in {each["name"] for each in requiring}:
                found = next((each for each in packages if self._leads_to(edge, each)), None)
                lines.append(self._line(edge, found))
                named |= {edge["name"]} if self.applies(edge.get("marker")) else set()
        lines += [
            self._line({"name": each["name"]}, each)
            for each in reached
            if each["name"] not in named and _locked_url(self.file, each)
        ]
        registry = [each for each in packages if "registry" in each.get("source", {})]
        urls = dict.fromkeys(str(each["source"]["registry"]) for each in reached if each in registry)
        indexes = tuple(url for url in urls if url not in _PYPI and "://" in url)
        return ProjectFile(tuple(lines), tuple(self._constraints(registry, reached)), indexes)

    def _reached(
        self, packages: Sequence[Mapping[str, Any]], roots: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """Return the packages in uv.lock that the roots require on the nodes, ignoring dependency groups."""
        found: list[Mapping[str, Any]] = []
        waiting: list[tuple[Mapping[str, Any], tuple[str, ...]]] = [(root, ()) for root in roots]
        seen = []
        while waiting:
            package, extras = waiting.pop(0)
            if (package, extras) in seen:
                continue
            seen.append((package, extras))
            if package not in found and package not in roots:
                found.append(package)
            optional = package.get("optional-dependencies", {})
            edges = [*package.get("dependencies", []), *(each for extra in extras for each in optional.get(extra, []))]
            for edge in edges:
                if self.applies(edge.get("marker")):
                    found_there = (each for each in packages if self._leads_to(edge, each))
                    waiting += [(each, tuple(edge.get("extra", ()))) for each in found_there]
        return found

    def _leads_to(self, edge: Mapping[str, Any], package: Mapping[str, Any]) -> bool:
        """Return True if a dependency refers to this package.

        uv locks several packages of a name if its version depends on markers. Only those for the nodes count.
        """
        same = all(edge.get(key) in (None, package.get(key)) for key in ("name", "version", "source"))
        markers = package.get("resolution-markers", ())
        return same and (not markers or any(map(self.applies, markers)))

    def _line(self, edge: Mapping[str, Any], package: Mapping[str, Any] | None) -> str:
        """Return the requirement for a dependency in uv.lock, with the URL and the hashes of its package."""
        url = _locked_url(self.file, package) if package else None
        marker = f" ; {edge['marker']}" if edge.get("marker") else ""
        hashes = _file_hashes(package) if package and url else ""
        return f"{edge['name']}{_extras(edge.get('extra', ()))}{f' @ {url}' if url else ''}{marker}{hashes}"

    def _constraints(
        self, registry: Sequence[Mapping[str, Any]], reached: Sequence[Mapping[str, Any]]
    ) -> Iterator[str]:
        """Yield the locked versions of packages from indexes, with the hashes of all versions of each package."""
        for each in registry:
            marker = " or ".join(f"({text})" for text in each.get("resolution-markers", []))
            wheels = [one for other in registry if other["name"] == each["name"] for one in other.get("wheels", [])]
            hashes = _hashes(each, dict.fromkeys(wheel.get("hash", "") for wheel in _usable(wheels)))
            index = str(each["source"]["registry"])
            if not hashes and each in reached and each["name"] not in _BUILDS and "://" in index and index not in _PYPI:
                raise self.error(
                    f'"{each["name"]}"',
                    f"{each['name']} {each['version']} of {redact(index)} has no hash that distinguishes it from a "
                    "package of the same name in another index",
                    WHEEL_EXPECTED,
                )
            word = f"{each['name']}=={each['version'].partition('+')[0]}"
            yield f"{word}{f' ; {marker}' if marker else ''}{hashes}"


def _place(package: Mapping[str, Any]) -> str | None:
    """Return the directory of a project in uv.lock, or None for other packages."""
    source = package.get("source", {})
    found: str | None = source.get("editable", source.get("virtual"))
    return found


def _locked_url(file: Path, package: Mapping[str, Any]) -> str | None:
    """Return the URL of a package in uv.lock, or None if it comes from an index."""
    source = package.get("source", {})
    if "git" in source:
        parts = urlsplit(source["git"])
        subdirectory = parse_qs(parts.query).get("subdirectory")
        url = f"git+{parts.scheme}://{parts.netloc}{parts.path}@{parts.fragment}"
        return url + (f"#subdirectory={subdirectory[0]}" if subdirectory else "")
    if "url" in source:
        return str(source["url"]) + (f"#subdirectory={source['subdirectory']}" if "subdirectory" in source else "")
    if local := source.get("directory") or source.get("editable") or source.get("path"):
        return Path(file.parent, str(local)).resolve().as_uri()
    return None


def _pylock(data: Mapping[str, Any]) -> ProjectFile:
    lines, left_out = [], []
    for package in data["packages"]:
        name, marker = package["name"], package.get("marker", "")
        if _OF_CUDA.fullmatch(name) or re.search(r"\b(extras|dependency_groups)\b", marker):
            left_out.append(name)
            continue
        rest = f" ; {marker}" if marker else ""
        if vcs := package.get("vcs"):
            subdirectory = f"#subdirectory={vcs['subdirectory']}" if "subdirectory" in vcs else ""
            lines.append(f"{name} @ git+{vcs['url']}@{vcs['commit-id']}{subdirectory}{rest}")
        elif archive := package.get("archive"):
            rest += _archive_hashes(archive.get("hashes", {}))
            url = archive.get("url") or _file_url(archive["path"])
            subdirectory = f"#subdirectory={archive['subdirectory']}" if "subdirectory" in archive else ""
            lines.append(f"{name} @ {url}{subdirectory}{rest}")
        elif directory := package.get("directory"):
            lines.append(f"{name} @ {_file_url(directory['path'], directory.get('subdirectory', ''))}{rest}")
        else:
            wheels = _usable(package.get("wheels", []))
            hashes = _hashes(package, (f"sha256:{each.get('hashes', {}).get('sha256', '')}" for each in wheels))
            lines.append(f"{name}=={package['version'].partition('+')[0]}{rest}{hashes}")
    urls = dict.fromkeys(package["index"] for package in data["packages"] if "index" in package)
    note = f"left out, because torch or an extra requires them: {', '.join(left_out)}" if left_out else ""
    return ProjectFile(tuple(lines), (), tuple(url for url in urls if url not in _PYPI), note)


def _file_url(*path: str) -> str:
    """Return the URL of a path, which may be relative."""
    return f"file:{quote(str(Path(*path)))}"


def _environment(file: Path, text: str) -> ProjectFile:
    """Return the pip part of a conda environment; its other packages are left out."""
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UnusableRequirement(f"{file}: {' '.join(str(error).split())}", "an environment.yml") from None
    if not isinstance(data, Mapping) or not isinstance(data.get("dependencies"), list):
        raise UnusableRequirement(f"{file} is not an environment", "a conda environment file with `dependencies`")
    packages = [str(each) for each in data["dependencies"] if not isinstance(each, Mapping)]
    pip = [line for each in data["dependencies"] if isinstance(each, Mapping) for line in each.get("pip") or []]
    left_out = [name for name in packages if name != "pip"]
    tool = next(filter(shutil.which, _CONDA), None)
    create = f"{tool or 'conda'} {'create' if tool == 'micromamba' else 'env create'} -p DIR -f {file}"
    whole = f"{create}, then hidl run --env DIR"
    if not pip:
        raise UnusableRequirement(f"{file} has no packages under `pip`", f"for conda's packages: {whole}")
    note = f"left out, packages of conda: {', '.join(left_out)}; for all packages: {whole}" if left_out else ""
    return ProjectFile(tuple(map(str, pip)), left_out=note)


def _usable(wheels: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the wheels for Linux."""
    for wheel in wheels:
        name = wheel.get("name") or wheel.get("filename") or wheel.get("url") or wheel.get("path") or ""
        if name.partition("#")[0].endswith("-any.whl") or "linux" in name:
            yield wheel


def _hashes(package: Mapping[str, Any], hashes: Iterable[str]) -> str:
    """Return pip's options for a package's hashes."""
    if package["name"] in _BUILDS:
        return ""
    return "".join(f" --hash={each}" for each in hashes if re.fullmatch(r"sha256:[0-9a-f]{64}", each))


def _file_hashes(package: Mapping[str, Any]) -> str:
    """Return pip's options for the hashes of the file that a URL or a path in uv.lock refers to."""
    files = [package.get("sdist", {}), *package.get("wheels", [])]
    return "".join(f" --hash={each['hash']}" for each in files if "hash" in each)


def _archive_hashes(hashes: Mapping[str, str]) -> str:
    """Return pip's option for an archive's SHA-256. Without one, return its other hashes, which are rejected later."""
    known = {"sha256": hashes["sha256"]} if "sha256" in hashes else hashes
    return "".join(f" --hash={name}:{value}" for name, value in known.items())


def _extras(extras: Sequence[str]) -> str:
    return f"[{','.join(extras)}]" if extras else ""


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
