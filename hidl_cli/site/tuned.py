"""Which sites set a tuning variable."""

from __future__ import annotations

from typing import Any

from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import list_all
from hidl_cli.site.checks import RULES


def list_settings(names: frozenset[str]) -> list[dict[str, Any]]:
    """Every site, in order, that sets one of ``names`` for one of its MPI libraries. Invalid files are skipped."""
    return [
        {"site": entry.name, "mpi": key, "value": library.tuning[name]}
        for entry in list_all("site")
        if (site := examine(RULES, entry).model)
        for key, library in site.mpi.items()
        for name in sorted(names.intersection(library.tuning))
    ]
