"""What a built page loads, and where its links lead."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "embed": "src"}


class Page(HTMLParser):
    """``loads``: addresses of scripts, styles, fonts and images; ``links``: of other pages; ``anchors``: its own."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Take in one element."""
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(found["href"])
        elif (name := _LOADED.get(tag, "")) in found:
            self.loads.append(found[name])


def is_elsewhere(address: str) -> bool:
    """Does it name another host, or a scheme that is none of files'?"""
    parts = urlsplit(address)
    return bool(parts.netloc or parts.scheme) and parts.scheme != "data"


def target(page: Path, address: str) -> tuple[Path, str]:
    """The file that an address of a page means, and the anchor in it (empty: its top)."""
    parts = urlsplit(address)
    file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return file, unquote(parts.fragment)
