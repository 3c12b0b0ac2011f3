"""Derived stacks, which add requirements to existing stacks and are stored in the user's overlay.

Requirements are also read from files of other tools: pyproject.toml, uv.lock, pylock.toml, and conda's environment.yml.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from hidl_cli import documents, paths
from hidl_cli.errors import BuildFailed, HidlError, InvalidInput, Mark, MissingPrecondition, Problem, UsageError
from hidl_cli.inputs import load, overlay
from hidl_cli.inputs.overlay import OverlayEntry
from hidl_cli.redaction import redact
from hidl_cli.stack import references, schema
from hidl_cli.stack.checks import RULES, load_stack
from hidl_cli.stack.install import make_lock, plan_install
from hidl_cli.stack.order import Order, Progress
from hidl_cli.stack.plan import StackSources
from hidl_cli.stack.references import ReferenceBuilder, read_toml
from hidl_cli.stack.schema import WHEEL_EXPECTED, Accelerator, Stack, UnusableRequirement, applies

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


_BYTES = 4 * 2**20  # maximum size of a requirements file
_COMMENT = re.compile(r"(^|\s+)#.*$")
_OPTION = re.compile(r"(?P<name>--[a-z-]+|-[a-zA-Z])(?:\s*=\s*|\s+|(?<=^-[a-zA-Z])|$)(?P<value>.*)")

_INCLUDES = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
#: Options that are ignored because they always apply: lockfiles have hashes, and only wheels are installed.
_GRANTED = ("--require-hashes", "--prefer-binary", "--only-binary")
_INDEXES = ("-i", "--index-url", "--pypi-url", "--extra-index-url")
_REFUSED = {
    **dict.fromkeys(
        ("--no-index", "--trusted-host"),
        ("{name} is unsupported in requirements files", "pip's settings (PIP_NO_INDEX, PIP_CERT, pip.conf)"),
    ),
    "--pre": ("--pre is unsupported", "a specifier that includes the pre-release, such as name>=2.0rc1"),
    "--no-binary": ("--no-binary is unsupported: stacks are installed from wheels", WHEEL_EXPECTED),
}


@dataclass(frozen=True)
class UserRequirement:
    """A normalized requirement and its origin, which is a line in a file or ``--with``."""

    text: str
    by: str
    is_constraint: bool = False


#: An additional check for a requirement; raises ``UnusableRequirement``.
Check = Callable[[str], None]
#: Prints a line of progress.
Say = Callable[[str], object]


#: Creates an object that builds packages from direct references, given the user's own package sources.
MakeBuilder = Callable[[StackSources], "ReferenceBuilder"]


@dataclass(frozen=True)
class Requested:
    """The user's requirements and package sources.

    Attributes:
        requirements: Normalized requirements and constraints.
        indexes: Package indexes without credentials.
        find_links: Pages and absolute directories with wheels, without credentials.
        credentials: URLs with credentials, as typed, by the URL without them.
    """

    requirements: tuple[UserRequirement, ...]
    indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)


def read(
    words: Sequence[str],
    files: Sequence[Path],
    check: Check,
    make_builder: MakeBuilder,
    say: Say = lambda _: None,
    *,
    markers: Mapping[str, str] | None = None,
) -> Requested:
    """Read requirements from the command line and from files, and lock direct references.

    Args:
        words: Requirements from the command line.
        files: Requirements files.
        check: Additional check for each requirement.
        make_builder: Creates the builder of direct references, if there are any.
        say: Prints a line of progress.
        markers: Values of environment markers on the nodes (default: those of this Python).

    Raises:
        InvalidInput: Requirements are invalid; the error lists all of them.
    """
    reader = _Reader(check, markers or {})
    for word in words:
        reader.add(word, f"--with {redact(word)!r}", None)
    for file in files:
        reader.read(file, constraints=False, named_in=None)
    for note in reader.notes:
        say(note)
    reader.raise_problems()
    if reader.references:
        reader.lock_references(make_builder, say)
        reader.raise_problems()
    return reader.requested


@dataclass(frozen=True)
class _Reference:
    """A direct reference that is not locked yet; ``index`` is its place among the requirements."""

    text: str
    directory: Path
    by: str
    mark: Mark | None
    index: int


class _Reader:
    def __init__(self, check: Check, markers: Mapping[str, str]) -> None:
        self.check = check
        self.markers = markers
        self.requirements: list[UserRequirement] = []
        self.references: list[_Reference] = []
        self.indexes: list[str] = []
        self.find_links: list[str] = []
        self.credentials: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self._read: set[tuple[Path, bool]] = set()

    @property
    def requested(self) -> Requested:
        """Everything that was read, without duplicates."""
        return Requested(
            tuple(dict.fromkeys(self.requirements)),
            tuple(dict.fromkeys(self.indexes)),
            tuple(dict.fromkeys(self.find_links)),
            self.credentials,
        )

    def raise_problems(self) -> None:
        """Raise ``InvalidInput`` if there are problems."""
        if self.problems:
            count = len(self.problems)
            raise InvalidInput(f"{count} invalid requirement{'s' if count > 1 else ''}", problems=self.problems)

    def lock_references(self, make_builder: MakeBuilder, say: Say) -> None:
        """Lock the direct references. This may download and build packages."""
        typed = tuple(tuple(self.credentials.get(url, url) for url in each) for each in (self.indexes, self.find_links))
        builder = make_builder(StackSources(*typed))
        for reference in reversed(self.references):
            say(f"lock {redact(reference.text)}")
            try:
                locked = builder.lock(reference.text, reference.directory)
                if locked is None:
                    say(f"left out {redact(reference.text)}: its marker does not apply to the nodes")
                    continue
                locked = schema.parse(locked)
                self.check(locked)
            except UnusableRequirement as error:
                self._problem(error, reference.by, reference.mark)
            else:
                self.requirements.insert(reference.index, UserRequirement(locked, reference.by))

    def _problem(self, error: UnusableRequirement, by: str, mark: Mark | None) -> None:
        where = "" if mark else f"{by}: "
        self.problems.append(Problem(f"{where}{error.message}", error.expected, mark=mark))

    def add(
        self, text: str, by: str, mark: Mark | None, *, constraint: bool = False, directory: Path | None = None
    ) -> None:
        """Add a requirement, or a problem if it is invalid. Direct references are locked later."""
        if not constraint and references.is_direct(text):
            self.references.append(_Reference(text, directory or Path.cwd(), by, mark, len(self.requirements)))
            return
        try:
            parsed = schema.parse(" ".join(text.split()))
            if constraint and "[" in schema.bare(parsed).partition(";")[0]:
                raise UnusableRequirement("constraints cannot have extras", "name and versions")
            if not constraint:
                self.check(parsed)
        except UnusableRequirement as error:
            self._problem(error, by, mark)
        else:
            self.requirements.append(UserRequirement(parsed, by, constraint))

    def add_source(self, url: str, mark: Mark | None, directory: Path, *, index: bool) -> None:
        """Add a package index or, without ``index``, a page or directory with wheels. Report it if it is invalid."""
        try:
            if "://" not in url and not index:
                place = (directory / Path(url).expanduser()).absolute()
                if not place.is_dir():
                    raise UnusableRequirement(f"{place} not found", "a URL or a directory with wheels")
                self.find_links.append(str(place))
                return
            if not url.startswith(("https://", "http://", "file:")):
                raise UnusableRequirement("invalid index", "a URL such as https://host/simple")
            kept = references.without_credentials(url)
        except UnusableRequirement as error:
            self.problems.append(Problem(error.message, error.expected, mark=mark))
            return
        (self.indexes if index else self.find_links).append(kept)
        if kept != url:
            self.credentials[kept] = url

    def read(self, file: Path, *, constraints: bool, named_in: Mark | None) -> None:
        """Add the requirements in a file, unless it has already been read."""
        place = (file.resolve(), constraints)
        if place in self._read:
            return
        self._read.add(place)
        try:
            text = _text(file)
            project = read_project(file, text, self.markers)
        except UnusableRequirement as error:
            self.problems.append(Problem(error.message, error.expected, mark=named_in))
            return
        if project is not None:
            self._add_project(project, file, constraints=constraints)
            return
        for number, line in _logical_lines(text):
            mark = Mark(file, number, 1, max(1, len(line)), redact(line))
            if line.startswith("-"):
                self._option(line, file, mark, constraints=constraints)
            else:
                self.add(line, f"{file}:{number}", mark, constraint=constraints, directory=file.parent)

    def _add_project(self, project: ProjectFile, file: Path, *, constraints: bool) -> None:
        for line in project.lines:
            if line.startswith("-"):
                self._option(line, file, Mark(file, text=redact(line)), constraints=constraints)
            else:
                by = f"{file}: {redact(line)}"
                self.add(line, by, None, constraint=constraints, directory=file.parent)
        for line in project.constraints:
            self.add(line, f"{file}: {redact(line)}", None, constraint=True)
        for url in project.indexes:
            self.add_source(url, Mark(file), file.parent, index=True)
        if project.left_out:
            self.notes.append(project.left_out)

    def _option(self, line: str, file: Path, mark: Mark, *, constraints: bool) -> None:
        found = _OPTION.fullmatch(line)
        name = found["name"] if found else line.split(maxsplit=1)[0]
        value = found["value"].strip().strip("\"'") if found else ""
        if name in _INCLUDES and value:
            if "://" in value:
                self.problems.append(Problem(f"{name} refers to a URL", "a file on this machine", mark=mark))
                return
            self.read(file.parent / value, constraints=constraints or _INCLUDES[name], named_in=mark)
        elif name in ("-e", "--editable") and value:
            self.add(value, f"{file}:{mark.line}", mark, directory=file.parent)
        elif name in (*_INDEXES, "-f", "--find-links") and value:
            self.add_source(value, mark, file.parent, index=name in _INDEXES)
        elif name not in _GRANTED:
            message, expected = _REFUSED.get(name, ("unsupported option {name}", "a requirement, -r FILE or -c FILE"))
            self.problems.append(Problem(message.format(name=name), expected, mark=mark))


def _text(file: Path) -> str:
    """Read a requirements file's text.

    Raises ``UnusableRequirement`` if the file is unreadable or a different kind of file.
    """
    if file.suffix in (".cfg", ".py"):
        raise UnusableRequirement(
            f"{file} is not a requirements file", f"`--with {file.parent}`, which installs the project"
        )
    try:
        with file.open("rb") as opened:
            content = opened.read(_BYTES + 1)
        if len(content) > _BYTES or b"\0" in content:
            raise UnusableRequirement(f"{file} is not a requirements file", f"text of at most {_BYTES >> 20} MiB")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise UnusableRequirement(f"{file}: {error.strerror}", "a requirements file") from None
    except UnicodeDecodeError:
        raise UnusableRequirement(f"{file} is not UTF-8", "a requirements file in UTF-8") from None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without comments and blank lines, joining continued lines."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        begun = begun if parts else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            parts.append(line[:-1])
            continue
        whole = _COMMENT.sub("", " ".join([*parts, line])).strip()
        parts = []
        if whole:
            yield begun, whole
    if rest := _COMMENT.sub("", " ".join(parts)).strip():
        yield begun, rest


_MADE_BY = "# Made by: "
#: NumPy versions in stacks for projects that need NumPy 1. The packages in the shipped stacks work with these versions.
_OLD_NUMPY = ">=1.26"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclass(frozen=True)
class Derived:
    """A derived stack, the text of its file, each requirement's origin, and the URLs that have credentials."""

    stack: Stack
    base: Stack
    file: Path
    text: str
    requirements: tuple[UserRequirement, ...]
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_kept(self) -> bool:
        """True if the file already defines this stack, apart from comments."""
        return self.file.is_file() and _definition(self.file.read_text(encoding="utf-8")) == _definition(self.text)


def derive(
    base: str,
    name: str,
    words: Sequence[str],
    files: Sequence[Path],
    *,
    accelerator: Accelerator,
    command: str,
    make_builder: MakeBuilder,
    say: Say,
    markers: Mapping[str, str],
) -> Derived:
    """Derive a stack from ``base`` without writing its file.

    Args:
        base: Name of an existing stack.
        name: Name of the new stack.
        words: Requirements from the command line.
        files: Requirements files.
        accelerator: The nodes' accelerator.
        command: Command line to be recorded in the file.
        make_builder: Creates the builder of direct references, if there are any.
        say: Prints a line of progress.
        markers: Values of environment markers on the nodes.

    Raises:
        UsageError: The name is invalid or taken.
        InvalidInput: Requirements are invalid; the error lists all of them.
    """
    _check_name(name, base)
    base_stack = load_stack(base)

    def check(text: str) -> None:
        schema.check_build(text, mpi=base_stack.mpi, accelerator=accelerator)

    requested = read(words, files, check, make_builder, say, markers=markers)
    requirements = requested.requirements
    for url in requested.credentials:
        say(f"the credentials of {url} are not stored: put them in ~/.netrc, or a variable ${{NAME}} in the URL")
    required = sorted({one.text for one in requirements if not one.is_constraint})
    if not required:
        raise UsageError(f"no requirements for stack {name}", hint="--with NAME==VERSION or -r FILE")
    text = _format_stack(name, base_stack, requested, redact(command))
    with paths.temporary_directory("stack") as directory:
        file = Path(directory, f"{name}.yaml")
        file.write_text(text, encoding="utf-8")
        stack = load.valid(load.examine(RULES, OverlayEntry("stack", name, file, "file")))
    user_directory = next(place for origin, place in overlay.directories("stack") if origin == "user")
    return Derived(
        stack, base_stack, user_directory / f"{name}.yaml", text, requirements, credentials=requested.credentials
    )


def settle(derived: Derived, order: Order, progress: Progress) -> None:
    """Resolve the stack if no lockfile fits, and then write its definition.

    If the requirements cannot be resolved, the definition remains unchanged.
    """
    try:
        planned = plan_install(order)
    except MissingPrecondition as error:
        if not order.locked:
            raise
        raise MissingPrecondition(
            error.message, hint="run the command without --locked to create the lockfile"
        ) from error
    if planned.plan is None:
        try:
            make_lock(order, progress)
        except BuildFailed as error:
            raise _explain(error, derived) from error
    if not derived.is_kept:
        known = derived.file.is_file()
        documents.write_text(derived.file, derived.text)
        progress.say(f"{'updated' if known else 'defined'} stack {derived.stack.name} in {derived.file}")


def _explain(error: HidlError, derived: Derived) -> BuildFailed:
    """Add the origin of each requirement mentioned in the resolver's message."""
    own = [(one.text if not one.is_constraint else f"{one.text} (constraint)", one.by) for one in derived.requirements]
    base_requirements = [
        (f"{name}{spec}", f"stack {derived.base.name}") for name, spec in derived.base.packages.items()
    ]
    base_requirements += [(text, f"stack {derived.base.name}") for text in derived.base.requirements]
    lines = [
        f"  {schema.bare(text)}: {by}"
        for text, by in (*own, *base_requirements)
        if re.search(rf"(?<![\w.-]){re.escape(schema.name_of(text))}(?![\w-])", error.message)
    ]
    listed = "\n".join(["\nrequired by:", *lines]) if lines else ""
    return BuildFailed(error.message + listed, hint=error.hint or "change a requirement, or derive from another stack")


def _check_name(name: str, base: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"invalid stack name {name!r}", hint="lower-case letters, digits and -, at most 64")
    if name == base:
        raise UsageError(
            f"stack {name} cannot be based on itself",
            hint="pass the original base stack and all requirements; the command replaces the definition",
        )
    entry = next((entry for entry in overlay.list_all("stack") if entry.name == name), None)
    if entry is None:
        return
    if entry.origin != "user" or entry.shadows:
        origin = (entry.shadows[-1] if entry.shadows else entry).origin
        raise UsageError(f"{name} is a {origin} stack", hint="choose another name with --as")
    if not entry.path.read_text(encoding="utf-8", errors="replace").startswith(_MADE_BY):
        raise UsageError(
            f"stack {name} was written by hand: {entry.path}", hint="choose another name with --as, or edit the file"
        )


def _format_stack(name: str, base: Stack, requested: Requested, command: str) -> str:
    """Return the stack file's text, with strings in JSON notation, which is also valid YAML.

    Args:
        name: Name of the new stack.
        base: Stack that the new stack extends.
        requested: Requirements and package sources.
        command: Command line that made the stack.
    """
    required = sorted({one.text for one in requested.requirements if not one.is_constraint})
    limits = sorted({one.text for one in requested.requirements if one.is_constraint})
    shown = ", ".join(dict.fromkeys(schema.name_of(text) for text in required))
    title = f"{base.title}, with {shown if len(shown) <= 60 else f'{len(required)} more requirements'}"
    lines = [
        f"{_MADE_BY}{' '.join(command.split())}",
        "# That command writes it again. To edit it by hand, remove these two lines first.",
        f"name: {json.dumps(name)}",
        f"title: {json.dumps(title)}",
        f"extends: {json.dumps(base.name)}",
        *([f"packages: {{numpy: {json.dumps(_OLD_NUMPY)}}}"] if _requires_old_numpy([*required, *limits]) else []),
        "requirements:",
        *(f"  - {json.dumps(text)}" for text in required),
        *(["constraints:"] if limits else []),
        *(f"  - {json.dumps(text)}" for text in limits),
        *([f"indexes: {json.dumps(requested.indexes)}"] if requested.indexes else []),
        *([f"find_links: {json.dumps(requested.find_links)}"] if requested.find_links else []),
    ]
    return "\n".join(lines) + "\n"


def _requires_old_numpy(requirements: Iterable[str]) -> bool:
    """Return whether a direct NumPy requirement excludes NumPy 2, which the shipped stacks require."""
    from packaging.requirements import Requirement

    named = [Requirement(text) for text in map(schema.bare, requirements) if schema.name_of(text) == "numpy"]
    return any(
        not any(one.specifier.contains(f"2.{minor}.{patch}") for minor in range(20) for patch in range(8))
        for one in named
        if one.url is None
    )


def _definition(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))
