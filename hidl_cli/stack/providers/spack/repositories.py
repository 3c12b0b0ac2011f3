"""The package repositories of an environment, each with the identity of its state."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hidl_cli.stack.providers.spack.environment import PACKAGES_TAG
from hidl_cli.stack.providers.spack.places import Places

#: Where a copy without its history says which commit it is of.
COMMIT = "COMMIT"
UNKNOWN = "unknown"


def states(where: Places) -> dict[str, str]:
    """Each repository's commit, or for hidl's own the SHA-256 of its files; ``unknown`` where neither can be told."""
    builtin = PACKAGES_TAG if where.builtin is None else commit(where.builtin)
    return {"builtin": builtin, "hidl": digest(where.own) if where.own.is_dir() else "none"}


def commit(directory: Path) -> str:
    """The commit that the clone around ``directory`` is at, read without git."""
    for place in (directory, *directory.parents):
        if (place / COMMIT).is_file():
            return (place / COMMIT).read_text(encoding="utf-8").strip()
        if (place / ".git").exists():
            return _head(place / ".git")
    return UNKNOWN


def digest(directory: Path) -> str:
    """The SHA-256 over the names and contents of a repository's files."""
    total = hashlib.sha256()
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        if "__pycache__" not in file.parts:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            total.update(f"{file.relative_to(directory).as_posix()}\0{content}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _head(git: Path) -> str:
    """What HEAD names; ``git`` is a directory, or the file of a work tree that says where it is."""
    if git.is_file():
        git = (git.parent / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()).resolve()
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        common = git / (git / "commondir").read_text(encoding="utf-8").strip() if (git / "commondir").is_file() else git
        if (common / name).is_file():
            return (common / name).read_text(encoding="utf-8").strip()
        packed = (common / "packed-refs").read_text(encoding="utf-8").splitlines()
    except OSError:
        return UNKNOWN
    return next((line.split()[0] for line in packed if line.endswith(f" {name}")), UNKNOWN)
