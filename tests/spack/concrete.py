"""Concrete specs, written down instead of solved: an installation is proved in seconds, the solver's part elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FLAGS: dict[str, list[str]] = {name: [] for name in ("cflags", "cppflags", "cxxflags", "fflags", "ldflags", "ldlibs")}


@dataclass(frozen=True)
class Node:
    """One package of a spec: with ``prefix`` it is an external. ``virtuals`` and ``types`` are
    what it is to those that need it."""

    name: str
    version: str
    variants: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    namespace: str = "builtin"
    virtuals: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    build_system: str = "generic"
    needs: Sequence[Node] = ()
    types: Sequence[str] = ("build", "link", "run")

    def document(self, system: str) -> dict[str, Any]:
        """The node of a spec file, for the operating system ``system``."""
        node: dict[str, Any] = {
            "name": self.name,
            "version": self.version,
            "namespace": self.namespace,
            "arch": {"platform": "linux", "platform_os": system, "target": platform.machine()},
            "parameters": {"build_system": self.build_system, **self.variants, **_FLAGS},
            "package_hash": f"{self.hash}====",
            "hash": self.hash,
            "annotations": {"original_specfile_version": 5},
        }
        if self.prefix:
            node["external"] = {"path": self.prefix, "module": None, "extra_attributes": dict(self.extra)}
        if self.needs:
            node["dependencies"] = [
                {
                    "name": other.name,
                    "hash": other.hash,
                    "parameters": {"deptypes": list(other.types), "virtuals": list(other.virtuals)},
                }
                for other in self.needs
            ]
        return node

    @property
    def hash(self) -> str:
        """A hash of its own, of the form of Spack's."""
        said = json.dumps([self.name, self.version, self.variants], sort_keys=True).encode()
        return base64.b32encode(hashlib.sha256(said).digest()).decode().lower()[:32]


def write(file: Path, system: str, root: Node) -> None:
    """The file of the spec ``root`` with all that it needs, for the operating system ``system``."""
    nodes = {node.name: node.document(system) for node in _all(root)}
    file.write_text(json.dumps({"spec": {"_meta": {"version": 5}, "nodes": list(nodes.values())}}), encoding="utf-8")


def _all(node: Node) -> Iterator[Node]:
    yield node
    for needed in node.needs:
        yield from _all(needed)
