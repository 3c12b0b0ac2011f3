"""Installations as hidl writes them, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hidl_cli.stack.installation import Installation
from hidl_cli.stack.lock import Lock, Package

WHEEL, OTHER, SOURCE, PATCH = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)


def installation(prefix: Path, packages: dict[str, str] | None = None, **manifest: Any) -> Installation:
    """One with wheels of these packages (two of NumPy's), and more keys of the manifest."""
    packages = {"mpich": "5.0.2", "numpy": "2.4.6"} if packages is None else packages
    hashes = {"numpy": (WHEEL, OTHER)}
    lock = Lock(
        "mine",
        "cp311",
        "linux-x86_64",
        (2, 28),
        "cpu",
        ("numpy",),
        tuple(Package(name, version, hashes.get(name, (WHEEL,))) for name, version in packages.items()),
    )
    prefix.mkdir(parents=True, exist_ok=True)
    (prefix / "lock.txt").write_text(lock.text())
    document = {
        "schema": "hidl.installation/1",
        "site": "here",
        "stack": "mine",
        "title": "A stack",
        "provider": "wheels",
        "id": "0123456789ab",
        "python": "cp311",
        "platform": "linux-x86_64",
        "accelerator": "cpu",
        "mpi": {"family": "mpich", "version": "5.0.2"},
        "packages": packages,
        "created": "2026-11-26T10:00:00+00:00",
        "own": {"hidl-workloads": {"version": "0.1.0", "digest": OTHER}},
        "builds": [],
        "advisories": [],
    } | manifest
    (prefix / "manifest.json").write_text(json.dumps(document))
    return Installation(prefix, document)


def distribution(prefix: Path, name: str, *lines: str) -> None:
    """Metadata of a distribution in the prefix."""
    place = prefix / "lib" / "python3.11" / "site-packages" / f"{name}-1.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text("\n".join(("Metadata-Version: 2.4", f"Name: {name}", "Version: 1", *lines, "")))


BUILD = {
    "name": "horovod",
    "version": "0.28.1",
    "kind": "wheel",
    "source": {"file": "horovod-0.28.1.tar.gz", "sha256": SOURCE},
    "patches": [{"file": "01-one.patch", "sha256": PATCH}],
    "against": {"mpich": "5.0.2"},
}
