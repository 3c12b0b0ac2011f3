"""Lockfiles of stacks that Spack builds.

A lockfile contains ``spack.lock`` as written by Spack, the states of the package repositories and configuration files,
the digest of the resolved environment, and the wheels that are installed alongside Spack's packages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidl_cli.documents import read_json
from hidl_cli.errors import BuildFailed, InvalidInput
from hidl_cli.stack.lock import Lock, Package, parse

SCHEMA = "hidl.spack-lock/1"


@dataclass(frozen=True)
class LockedSpec:
    """A package in ``spack.lock``; ``external`` is its prefix on the site, or None if Spack installs it."""

    name: str
    version: str
    hash: str
    external: str | None


@dataclass(frozen=True)
class SpackLock:
    """A stack that Spack has resolved for a site.

    ``inputs`` is the digest of the environment, ``repositories`` maps repositories and configuration files to their
    states, ``content`` is ``spack.lock``, and ``wheels`` are the packages that Spack does not build.
    """

    stack: str
    site: str
    spack: str
    inputs: str
    repositories: Mapping[str, str]
    content: Mapping[str, Any]
    wheels: Lock

    @property
    def filename(self) -> str:
        """The name of the lockfile."""
        return filename(self.stack, self.site)

    @property
    def nodes(self) -> tuple[LockedSpec, ...]:
        """All Spack packages, sorted by name."""
        found = [
            LockedSpec(
                name=spec["name"],
                version=str(spec["version"]),
                hash=key,
                external=(spec.get("external") or {}).get("path") if spec.get("external") else None,
            )
            for key, spec in self.content["concrete_specs"].items()
        ]
        return tuple(sorted(found, key=lambda node: (node.name, node.hash)))

    @property
    def roots(self) -> frozenset[str]:
        """The hashes of the requested specs."""
        return frozenset(root["hash"] for root in self.content["roots"])

    @property
    def packages(self) -> tuple[Package, ...]:
        """All packages: Spack's with their hashes, followed by the wheels."""
        return (*(Package(node.name, node.version, (node.hash,)) for node in self.nodes), *self.wheels.packages)

    @property
    def digest(self) -> str:
        """A SHA-256 computed from Spack's package hashes and the wheels' digest."""
        hashes = sorted(self.content["concrete_specs"])
        return hashlib.sha256("\n".join([*hashes, self.wheels.digest]).encode()).hexdigest()

    def version(self, package: str) -> str | None:
        """Return the locked version of a package, or None if the lockfile lacks it."""
        return next((locked.version for locked in self.packages if locked.name == package), None)

    def node(self, package: str) -> LockedSpec | None:
        """Return the first package of that name."""
        return next((node for node in self.nodes if node.name == package), None)

    @property
    def spack_lock(self) -> str:
        """The text of ``spack.lock``."""
        return json.dumps(self.content, indent=1) + "\n"

    def text(self) -> str:
        """Return the text of the lockfile."""
        document = {
            "schema": SCHEMA,
            "stack": self.stack,
            "site": self.site,
            "spack": self.spack,
            "inputs": self.inputs,
            "repositories": dict(self.repositories),
            "packages": {node.name: f"{node.version} /{node.hash}" for node in self.nodes},
            "wheels": self.wheels.text(),
            "spack_lock": self.content,
        }
        return json.dumps(document, indent=1) + "\n"


def filename(stack: str, site: str) -> str:
    """Return the name of a lockfile."""
    return f"{stack}-{site}-spack.json"


def read(file: Path) -> SpackLock:
    """Read a lockfile. Raises ``InvalidInput`` if it is damaged."""
    try:
        document = read_json(file)
        if document["schema"] != SCHEMA:
            raise ValueError(f"unknown schema {document['schema']!r}")
        lock = SpackLock(
            stack=document["stack"],
            site=document["site"],
            spack=document["spack"],
            inputs=document["inputs"],
            repositories=dict(document["repositories"]),
            content=document["spack_lock"],
            wheels=parse(document["wheels"], file),
        )
        return lock if lock.nodes else _empty(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"lockfile {file} is damaged: {error}", hint="remove the file, or create a new one with `hidl stack lock`"
        ) from error


def content_of(file: Path) -> Mapping[str, Any]:
    """Read Spack's own ``spack.lock``. Raises ``BuildFailed`` if it is invalid or empty."""
    try:
        document = read_json(file)
        if document["concrete_specs"] and document["roots"]:
            return dict(document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildFailed(f"invalid Spack lockfile {file}: {error}") from error
    raise BuildFailed(f"Spack did not resolve anything: {file} contains no packages")


def _empty(file: Path) -> SpackLock:
    raise ValueError(f"{file.name} contains no packages")


def why_unfit(lock: SpackLock, inputs: str, states: Mapping[str, str]) -> str | None:
    """Return why the lockfile cannot be used, or None if it can.

    Args:
        lock: The lockfile.
        inputs: The digest of the required environment.
        states: The current states of the repositories and of Spack's own configuration.
    """
    if lock.inputs != inputs:
        return "the recipe, the site file or the machine's software has changed since it was created"
    changed = [name for name in {**lock.repositories, **states} if lock.repositories.get(name) != states.get(name)]
    return (
        "; ".join(
            f"Spack's {name} is {states.get(name, 'none')}, but the lockfile was created with "
            f"{lock.repositories.get(name, 'none')}"
            for name in changed
        )
        or None
    )
