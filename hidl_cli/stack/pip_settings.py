"""Where wheels come from: the site's word, then pip's own settings, handed to uv, which does not read pip's.

What the user has set for uv itself (``UV_*``) always stays as it is.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    """Packages that are downloaded, or will be: ``sizes`` in bytes, and which of them are ``done``."""

    sizes: tuple[tuple[str, float], ...] = ()
    done: frozenset[str] = frozenset()
    over: bool = False

    @property
    def bytes(self) -> float:
        """The bytes of all."""
        return sum(size for _, size in self.sizes)

    @property
    def done_bytes(self) -> float:
        """The bytes of those that are done."""
        return sum(size for name, size in self.sizes if name in self.done)

    @property
    def under_way(self) -> bool:
        """Is any of them still to come?"""
        return bool(self.sizes) and not self.over

    def after(self, line: str) -> Downloads:
        """Return how far it is once uv has said ``line``."""
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
        """Return how far it is once uv has said all these lines."""
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

# Of these a private environment must know nothing: they would point uv or Python at another one.
_FOREIGN = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_SYSTEM_PYTHON", "UV_REQUIRE_HASHES")


@dataclass(frozen=True)
class Sources:
    """Indexes (URLs), find-links (URLs or existing directories), certificates, and whether indexes are to be asked."""

    index_url: str | None
    extra_index_urls: tuple[str, ...]
    find_links: tuple[str, ...]
    cert: str | None
    no_index: bool
    #: Directories that the settings name and that do not exist. pip passes over them; uv would fail.
    absent: tuple[str, ...]
    #: How uv puts files of its cache into an installation: ``copy``, which the kernel makes a reflink where the file
    #: system has them (copy_file_range), or ``hardlink``. uv's ``clone`` makes hard links where it cannot clone.
    link: str = "copy"


def read(wheels: Wheels, environ: Mapping[str, str], *, link: str = "copy") -> Sources:
    """The sources for a site: its own first, then those of pip's environment variables and configuration files."""
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
    """The variables that tell uv so, without those that the user has set.

    With further indexes, uv would stop at the first that knows a package, even where it lacks the wanted version. pip
    goes on to the next, and so shall uv: an incomplete index of a site breaks nothing, and what is installed is held
    to the hashes of the lock.
    """
    indexes = sources.extra_index_urls
    wanted = {
        ("UV_DEFAULT_INDEX", "UV_INDEX_URL"): sources.index_url,
        ("UV_INDEX", "UV_EXTRA_INDEX_URL"): " ".join(indexes),
        ("UV_FIND_LINKS",): ",".join(_url(link) for link in sources.find_links),
        ("UV_INDEX_STRATEGY",): "unsafe-first-match" if indexes else None,
        ("SSL_CERT_FILE",): sources.cert,
        ("UV_LINK_MODE",): sources.link,
    }
    return {names[0]: value for names, value in wanted.items() if value and not any(name in environ for name in names)}


def pip_variables(sources: Sources, environ: Mapping[str, str]) -> dict[str, str]:
    """The same settings as variables of pip, for what uv cannot do."""
    index = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or sources.index_url
    wanted = {
        "PIP_INDEX_URL": index,
        "PIP_EXTRA_INDEX_URL": " ".join(sources.extra_index_urls),
        "PIP_FIND_LINKS": " ".join(_url(link) for link in sources.find_links),
        "PIP_CERT": sources.cert,
        "PIP_NO_INDEX": "1" if sources.no_index and index == sources.index_url else None,
    }
    return {name: value for name, value in wanted.items() if value}


def uv_flags(sources: Sources, environ: Mapping[str, str]) -> list[str]:
    """The settings that uv takes as options only."""
    chosen = any(name in environ for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"))
    return ["--no-index"] if sources.no_index and not chosen else []


def environment(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment for uv: the user's, with ``variables``, and no Python downloaded unasked."""
    own = {name: value for name, value in environ.items() if name not in _FOREIGN}
    if own.get("UV_CACHE_DIR"):  # may be relative, and uv is not started in the directory that hidl is
        own["UV_CACHE_DIR"] = str(Path(own["UV_CACHE_DIR"]).absolute())
    return {"UV_PYTHON_DOWNLOADS": "never", **own, **variables, "NO_COLOR": "1"}


def _pip(environ: Mapping[str, str]) -> dict[str, str]:
    """pip's settings: its configuration files, the later ones over the earlier, and the environment over all."""
    settings: dict[str, str] = {}
    for file in _files(environ):
        settings |= _of_file(file)
    for key in _KEYS:
        value = environ.get(f"PIP_{key.replace('-', '_').upper()}")
        if value:
            settings[key] = value
    return settings


def _files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files in its order. ``PIP_CONFIG_FILE=/dev/null`` means none at all."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path.home()
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    system = [Path(place) / "pip" / "pip.conf" for place in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    files = [*system, Path("/etc/pip.conf"), home / ".pip" / "pip.conf", config / "pip" / "pip.conf"]
    return [*files, Path(sys.prefix) / "pip.conf", *([Path(named)] if named else [])]


def _of_file(file: Path) -> dict[str, str]:
    from configparser import Error, RawConfigParser

    if not file.is_file():
        return {}
    parser = RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (Error, UnicodeDecodeError, OSError):  # pip itself says so when it is used; hidl only borrows the settings
        return {}
    sections = [parser[name] for name in _SECTIONS if parser.has_section(name)]
    return {key: section[key].strip() for section in sections for key in _KEYS if section.get(key, "").strip()}


def _is_local(place: str) -> bool:
    return "://" not in place or place.startswith("file:")


def _directory(place: str) -> Path:
    return Path(unquote(urlsplit(place).path)) if place.startswith("file:") else Path(place)


def _absolute(place: str) -> str:
    """A directory as an absolute path: uv is not started in the directory that hidl is."""
    if "://" in place or place.startswith("file:"):
        return place
    return str(Path(os.path.expandvars(place)).expanduser().absolute())


def _url(place: str) -> str:
    """A directory as a URL: uv separates the values of its variables by commas, which a path may hold."""
    return place if "://" in place or place.startswith("file:") else Path(place).as_uri()


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
