"""Package indexes and wheel directories from the settings of the site and of pip.

These are passed to uv explicitly, because uv does not read pip's settings.

The user's own uv settings (``UV_*``) take precedence, except over the sources that a stack itself names.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from hidl_cli.site.schema import Wheels


_BEGUN = re.compile(r"Downloading (\S+) \(([0-9.]+)([KMGT]?i?B)\)")
_ENDED = re.compile(r"\s*Downloaded (\S+)")
_ALL_ENDED = re.compile(r"(Prepared|Installed) \d+ packages? in .*")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True)
class Downloads:
    """Download progress: the size of each package in bytes, and the names of completed packages."""

    sizes: tuple[tuple[str, float], ...] = ()
    done: frozenset[str] = frozenset()
    over: bool = False

    @property
    def bytes(self) -> float:
        """The total size in bytes."""
        return sum(size for _, size in self.sizes)

    @property
    def done_bytes(self) -> float:
        """The size of the completed downloads in bytes."""
        return sum(size for name, size in self.sizes if name in self.done)

    @property
    def under_way(self) -> bool:
        """True if downloads have started and not all of them have ended."""
        return bool(self.sizes) and not self.over

    def after(self, line: str) -> Downloads:
        """Return the progress after uv prints ``line``."""
        if begun := _BEGUN.fullmatch(line):
            name, number, unit = begun.groups()
            others = tuple(each for each in self.sizes if each[0] != name)
            return Downloads((*others, (name, float(number) * _UNITS.get(unit, 0))), self.done - {name})
        if (ended := _ENDED.fullmatch(line)) and ended[1] in dict(self.sizes):
            return Downloads(self.sizes, self.done | {ended[1]})
        if _ALL_ENDED.fullmatch(line):
            return Downloads(self.sizes, self.done, over=True)
        return self

    def after_all(self, lines: Iterable[str]) -> Downloads:
        """Return the progress after uv prints these lines."""
        found = self
        for line in lines:
            found = found.after(line)
        return found

    def __str__(self) -> str:
        count = f"{len(self.done)} of {len(self.sizes)} downloads"
        return f"{count}, {self.done_bytes / 2**20:.0f} of {self.bytes / 2**20:.0f} MiB"


_KEYS = ("index-url", "extra-index-url", "find-links", "cert", "no-index")
_SECTIONS = ("global", "install")
_TRUE = ("1", "true", "yes", "on")

# Variables that are removed from uv's environment because they would point uv or Python to another environment.
_FOREIGN = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_SYSTEM_PYTHON", "UV_REQUIRE_HASHES")


@dataclass(frozen=True)
class Sources:
    """Package indexes (URLs), find-links (URLs or existing directories) and certificates.

    ``no_index`` disables all indexes, and ``of_stack`` contains the indexes and find-links that the stack names.
    """

    index_url: str | None
    extra_index_urls: tuple[str, ...]
    find_links: tuple[str, ...]
    cert: str | None
    no_index: bool
    #: Missing find-links directories, which pip ignores, but which would make uv fail.
    absent: tuple[str, ...]
    #: uv's link mode: ``copy``, which becomes a reflink on file systems that support it (copy_file_range), or
    #: ``hardlink``. uv's mode ``clone`` falls back to hard links, so it is not used.
    link: str = "copy"
    of_stack: frozenset[str] = frozenset()

    def with_stack(self, indexes: Iterable[str], find_links: Iterable[str]) -> Sources:
        """Return the sources, preceded by those that a stack names."""
        indexes, find_links = tuple(indexes), tuple(find_links)
        return replace(
            self,
            extra_index_urls=(*indexes, *self.extra_index_urls),
            find_links=(*find_links, *self.find_links),
            of_stack=self.of_stack.union(indexes, find_links),
        )


def read(wheels: Wheels, environ: Mapping[str, str], *, link: str = "copy") -> Sources:
    """Return a site's sources, followed by those in pip's environment variables and configuration files."""
    pip = _pip(environ)
    links = [_absolute(link) for link in (*wheels.find_links, *pip.get("find-links", "").split())]
    absent = [link for link in links if _is_local(link) and not _directory(link).exists()]
    return Sources(
        index_url=wheels.index_url or pip.get("index-url"),
        extra_index_urls=_unique([*wheels.extra_index_urls, *pip.get("extra-index-url", "").split()]),
        find_links=_unique(link for link in links if link not in absent),
        cert=pip.get("cert"),
        no_index=pip.get("no-index", "").lower() in _TRUE,
        link=link,
        absent=_unique(absent),
    )


def uv_variables(sources: Sources, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as uv variables.

    If the user has already set one of these variables, only the sources that the stack names are added to it.

    By default, uv stops at the first index that has a package, even if the index lacks the required version. If there
    are several indexes, a strategy is selected that continues with the next index like pip, so that a site's incomplete
    index does no harm. The hashes of the lockfile are still checked.
    """
    wanted = {
        ("UV_DEFAULT_INDEX", "UV_INDEX_URL"): sources.index_url,
        ("UV_INDEX_STRATEGY",): "unsafe-first-match" if sources.extra_index_urls else None,
        ("SSL_CERT_FILE",): sources.cert,
        ("UV_LINK_MODE",): sources.link,
    }
    found = {names[0]: value for names, value in wanted.items() if value and not any(name in environ for name in names)}
    for names, items, separator in (
        (("UV_INDEX", "UV_EXTRA_INDEX_URL"), {url: url for url in sources.extra_index_urls}, " "),
        (("UV_FIND_LINKS",), {link: _url(link) for link in sources.find_links}, ","),
    ):
        is_set = any(name in environ for name in names)
        values = [value for item, value in items.items() if not is_set or item in sources.of_stack]
        if values:
            found[names[0]] = separator.join([*values, *filter(None, [environ.get(names[0])])])
    return found


def pip_variables(sources: Sources, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as pip variables; pip performs the tasks that uv does not support."""
    index = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or sources.index_url
    wanted = {
        "PIP_INDEX_URL": index,
        "PIP_EXTRA_INDEX_URL": " ".join(sources.extra_index_urls),
        "PIP_FIND_LINKS": " ".join(_url(link) for link in sources.find_links),
        "PIP_CERT": sources.cert,
        "PIP_NO_INDEX": "1" if sources.no_index and index == sources.index_url else None,
    }
    return {name: value for name, value in wanted.items() if value}


def directories(sources: Sources) -> list[Path]:
    """Return the find-links that are directories."""
    return [_directory(link) for link in sources.find_links if _is_local(link)]


def uv_flags(sources: Sources, environ: Mapping[str, str]) -> list[str]:
    """Return the settings that uv only supports as options."""
    chosen = any(name in environ for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"))
    return ["--no-index"] if sources.no_index and not chosen else []


def environment(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return uv's environment, which is the user's with ``variables`` added and Python downloads disabled."""
    own = {name: value for name, value in environ.items() if name not in _FOREIGN}
    if own.get("UV_CACHE_DIR"):  # may be relative, but uv runs in another directory
        own["UV_CACHE_DIR"] = str(Path(own["UV_CACHE_DIR"]).absolute())
    return {"UV_PYTHON_DOWNLOADS": "never", **own, **variables, "NO_COLOR": "1"}


def _pip(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings. Later configuration files override earlier ones, and the environment overrides all."""
    settings: dict[str, str] = {}
    for file in _files(environ):
        settings |= _read_file(file)
    for key in _KEYS:
        value = environ.get(f"PIP_{key.replace('-', '_').upper()}")
        if value:
            settings[key] = value
    return settings


def _files(environ: Mapping[str, str]) -> list[Path]:
    """Return pip's configuration files in the order pip reads them, or no files if ``PIP_CONFIG_FILE=/dev/null``."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path.home()
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    system = [Path(place) / "pip" / "pip.conf" for place in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    files = [*system, Path("/etc/pip.conf"), home / ".pip" / "pip.conf", config / "pip" / "pip.conf"]
    return [*files, Path(sys.prefix) / "pip.conf", *([Path(named)] if named else [])]


def _read_file(file: Path) -> dict[str, str]:
    from configparser import Error, RawConfigParser

    if not file.is_file():
        return {}
    parser = RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (Error, UnicodeDecodeError, OSError):  # pip itself reports this error when it runs
        return {}
    sections = [parser[name] for name in _SECTIONS if parser.has_section(name)]
    return {key: section[key].strip() for section in sections for key in _KEYS if section.get(key, "").strip()}


def _is_local(place: str) -> bool:
    return "://" not in place or place.startswith("file:")


def _directory(place: str) -> Path:
    return Path(unquote(urlsplit(place).path)) if place.startswith("file:") else Path(place)


def _absolute(place: str) -> str:
    """Return the absolute path of a directory, because uv runs in another directory."""
    if "://" in place or place.startswith("file:"):
        return place
    return str(Path(os.path.expandvars(place)).expanduser().absolute())


def _url(place: str) -> str:
    """Return a path as a URL, because uv separates values with commas, and a path may contain commas."""
    return place if "://" in place or place.startswith("file:") else Path(place).as_uri()


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
