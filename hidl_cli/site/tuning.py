"""List the tuning settings in site files, and save measured settings there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from hidl_cli import documents
from hidl_cli.errors import HidlError
from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import list_all
from hidl_cli.mpi import Library
from hidl_cli.site import yamledit
from hidl_cli.site.checks import RULES
from hidl_cli.site.load import load_site
from hidl_cli.site.record import user_file
from hidl_cli.site.schema import Site
from hidl_cli.site.yamledit import YamlItem, document


def list_settings(names: frozenset[str]) -> list[dict[str, Any]]:
    """Return each setting of a variable in ``names``, with its site, its MPI library and the comment above it.

    Settings are ordered by site. Invalid site files are skipped.
    """
    return [
        {"site": entry.name, "mpi": key, "value": values[name], "why": _comment(entry.path, name)}
        for entry in list_all("site")
        if (site := examine(RULES, entry).model)
        for key, values in _tuning(site).items()
        for name in sorted(names.intersection(values))
    ]


def save_tuning(site: str, library: Library, variables: Mapping[str, str], *, gpus: bool, why: str) -> Path:
    """Write variables into the user's own file for a site and return its path.

    The variables are set for the site's MPI library that has the same name as ``library``. If there is none, they are
    set for all MPI libraries in stacks that belong to the same family as ``library``. Older values of the variables are
    replaced, but the file's other keys, comments and order are kept.

    Args:
        site: Name of the site.
        library: The MPI library that reads the variables.
        variables: Values by name.
        gpus: Set the variables only for runs that compute on GPUs.
        why: Comment for each variable.

    Raises ``HidlError`` if the file cannot be changed; the hint contains the lines to add.
    """
    if library.name in load_site(site).mpi:
        key: tuple[str, ...] = ("mpi", library.name, *(("with_gpus",) if gpus else ()), "tuning")
    else:
        key = ("tuning", library.family)
    file = user_file(site)
    try:
        old = file.read_bytes().decode() if file.exists() else None  # read_text would convert line endings
        if old is not None and not os.access(file, os.W_OK):
            raise PermissionError(f"{file} is read-only")
        before = {} if old is None else yamledit.values_at(old, key)
        values = [yamledit.Value((*key, name), value, why, was=before.get(name)) for name, value in variables.items()]
        lines = document(yamledit.items(values))
        new = (
            document([YamlItem("name", site), YamlItem("extends", site), *yamledit.items(values)])
            if old is None
            else yamledit.edited(old, values)
        )
        if new is not None:
            documents.write_text(file.resolve(), new, mode=file.stat().st_mode & 0o777 if old is not None else 0o644)
            return file
        reason = "its layout does not allow automatic changes"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise HidlError(f"failed to save the tuning in {file}: {reason}", hint=f"add these lines:\n{lines}")


def _tuning(site: Site) -> dict[str, Mapping[str, Any]]:
    """Return the variables for each of the site's MPI libraries, and for each family of the stacks' own libraries."""
    of_libraries = {key: {**each.tuning, **each.with_gpus.tuning} for key, each in site.mpi.items()}
    return {**of_libraries, **{f"stacks' own {family}": values for family, values in site.tuning.items()}}


def _comment(file: Path, name: str) -> str:
    """Return the comment above the line that sets ``name`` if it marks a measured value, or else an empty string."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    above = (first.strip() for first, second in pairwise(lines) if second.strip().startswith(f"{name}:"))
    return next((line.removeprefix("# ") for line in above if line.startswith(f"# {yamledit.MEASURED}")), "")
