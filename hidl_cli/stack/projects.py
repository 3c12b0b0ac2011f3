"""Requirements in files of other tools: pyproject.toml, uv.lock, pylock.toml, and environment.yml of conda."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hidl_cli.stack.references import read_toml
from hidl_cli.stack.schema import UnusableRequirement

#: Packages with separate builds for CPUs and GPUs: hidl selects the build, so the hashes of another one do not apply.
_BUILDS = ("torch", "torchvision", "torchaudio")
#: Packages that a CUDA build of torch brings.
_OF_CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")
_PYPI = ("https://pypi.org/simple", "https://pypi.org/simple/")
_CONDA = ("micromamba", "mamba", "conda")
_PROJECT_EXPECTED = "a [project] table with `dependencies`"


@dataclass(frozen=True)
class ProjectFile:
    """The content of a project's file.

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


def read_project(file: Path, text: str) -> ProjectFile | None:
    """Return the requirements in a project's file, or None if it is a requirements file.

    Raises ``UnusableRequirement`` if the file is damaged or has no requirements that can be read.
    """
    if file.suffix in (".yml", ".yaml"):
        return _environment(file, text)
    if file.suffix not in (".toml", ".lock"):
        return None
    try:
        data = read_toml(text)
    except ValueError as error:
        raise UnusableRequirement(f"{file}: {error}", "TOML") from None
    if isinstance(data.get("package"), list) and "requires-python" in data:
        return _uv_lock(file, data)
    if isinstance(data.get("packages"), list) and "lock-version" in data:
        return _pylock(data)
    return _pyproject(file, data)


def _pyproject(file: Path, data: Mapping[str, Any]) -> ProjectFile:
    project = data.get("project", {})
    if "dependencies" in project.get("dynamic", []):
        raise UnusableRequirement(
            f"the dependencies of {file} are computed by its build",
            f"the project itself: --with {file.parent}",
        )
    if "dependencies" not in project:
        poetry = "; for Poetry: poetry export -o requirements.txt" if "poetry" in data.get("tool", {}) else ""
        raise UnusableRequirement(f"{file} has no dependencies", f"{_PROJECT_EXPECTED}{poetry}")
    uv = data.get("tool", {}).get("uv", {})
    sources = {_canonical(name): source for name, source in uv.get("sources", {}).items()}
    lines = tuple(_with_source(file, text, sources) for text in project["dependencies"])
    return ProjectFile(lines, (), tuple(index["url"] for index in uv.get("index", []) if "url" in index))


def _with_source(file: Path, text: str, sources: Mapping[str, Any]) -> str:
    """Return the requirement with the source in ``tool.uv.sources``, if there is one."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise UnusableRequirement(f"{file}: invalid requirement {text!r}", str(error).splitlines()[0]) from None
    source = sources.get(_canonical(requirement.name))
    if source is None or (isinstance(source, Mapping) and "index" in source):
        return text
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    if isinstance(source, Mapping) and "git" in source:
        revision = next((source[key] for key in ("rev", "tag", "branch") if key in source), None)
        url = f"git+{source['git']}{f'@{revision}' if revision else ''}"
        url += f"#subdirectory={source['subdirectory']}" if "subdirectory" in source else ""
        return f"{requirement.name}{extras} @ {url}{marker}"
    if isinstance(source, Mapping) and "url" in source:
        return f"{requirement.name}{extras} @ {source['url']}{marker}"
    if isinstance(source, Mapping) and "path" in source:
        return f"{(file.parent / source['path']).absolute()}{extras}{marker}"
    raise UnusableRequirement(f"{file}: unsupported source of {requirement.name}", "git, url, path or index")


def _uv_lock(file: Path, data: Mapping[str, Any]) -> ProjectFile:
    """Return the project's dependencies as requirements, and the locked versions as constraints."""
    packages: list[Mapping[str, Any]] = data["package"]
    roots = [each for each in packages if {"virtual", "editable"} & each.get("source", {}).keys()]
    if not roots:
        raise UnusableRequirement(f"{file} has no project", "a uv.lock of a project (uv lock)")
    located = {each["name"]: (_locked_url(file, each), _file_hashes(each)) for each in packages if each not in roots}
    direct = {name: (url, hashes) for name, (url, hashes) in located.items() if url}
    lines = []
    names = {root["name"] for root in roots}
    for dependency in (each for root in roots for each in root.get("dependencies", [])):
        name, extras = dependency["name"], dependency.get("extra", [])
        if name in names:
            continue
        url, hashes = direct.pop(name, (None, ""))
        word = name + _extras(extras)
        marker = f" ; {dependency['marker']}" if dependency.get("marker") else ""
        lines.append(f"{word}{f' @ {url}' if url else ''}{marker}{hashes}")
    lines += [f"{name} @ {url}{hashes}" for name, (url, hashes) in direct.items()]
    registry = [each for each in packages if "registry" in each.get("source", {})]
    several = Counter(each["name"] for each in registry)
    constraints = []
    for each in registry:
        marker = " or ".join(f"({text})" for text in each.get("resolution-markers", []))
        hashes = _hashes(each, (wheel.get("hash", "") for wheel in _usable(each.get("wheels", []))))
        word = f"{each['name']}=={each['version'].partition('+')[0]}"
        constraints.append(f"{word}{f' ; {marker}' if marker else ''}{hashes if several[each['name']] == 1 else ''}")
    urls = dict.fromkeys(str(each["source"]["registry"]) for each in registry)
    indexes = tuple(url for url in urls if url not in _PYPI and "://" in url)
    return ProjectFile(tuple(lines), tuple(constraints), indexes)


def _locked_url(file: Path, package: Mapping[str, Any]) -> str | None:
    """Return the URL of a package in uv.lock, or None if it comes from an index."""
    source = package.get("source", {})
    if "git" in source:
        parts = urlsplit(source["git"])
        subdirectory = parse_qs(parts.query).get("subdirectory")
        url = f"git+{parts.scheme}://{parts.netloc}{parts.path}@{parts.fragment}"
        return url + (f"#subdirectory={subdirectory[0]}" if subdirectory else "")
    if "url" in source:
        return str(source["url"])
    if local := source.get("directory") or source.get("path"):
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
            lines.append(f"{name} @ {archive['url']}{rest}" if "url" in archive else f"{_local(archive['path'])}{rest}")
        elif directory := package.get("directory"):
            lines.append(f"{_local(directory['path'])}{rest}")
        else:
            wheels = _usable(package.get("wheels", []))
            hashes = _hashes(package, (f"sha256:{each.get('hashes', {}).get('sha256', '')}" for each in wheels))
            lines.append(f"{name}=={package['version'].partition('+')[0]}{rest}{hashes}")
    urls = dict.fromkeys(package["index"] for package in data["packages"] if "index" in package)
    note = f"left out, because torch or an extra requires them: {', '.join(left_out)}" if left_out else ""
    return ProjectFile(tuple(lines), (), tuple(url for url in urls if url not in _PYPI), note)


def _local(path: str) -> str:
    return path if path.startswith("/") else f"./{path}"


def _environment(file: Path, text: str) -> ProjectFile:
    """Return the pip part of a conda environment; its other packages are left out."""
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UnusableRequirement(f"{file}: {' '.join(str(error).split())}", "an environment.yml") from None
    if not isinstance(data, Mapping) or not isinstance(data.get("dependencies"), list):
        raise UnusableRequirement(f"{file} is not an environment", "a file of conda with `dependencies`")
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
    """Return pip's option for the SHA-256 of an archive, or for its other hashes, which are reported as unsupported."""
    known = {"sha256": hashes["sha256"]} if "sha256" in hashes else hashes
    return "".join(f" --hash={name}:{value}" for name, value in known.items())


def _extras(extras: Sequence[str]) -> str:
    return f"[{','.join(extras)}]" if extras else ""


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
