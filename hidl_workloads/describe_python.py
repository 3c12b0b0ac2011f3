"""Print what a Python is and has, as JSON: version, packages, and where those that use MPI lie. Nothing is imported.

::

    DIR/bin/python -I describe_python.py
"""

from __future__ import annotations

import json
import sys
from importlib import metadata, util

TYPE_CHECKING = False  # the typing module is not imported at run time: start-up time counts
if TYPE_CHECKING:
    from typing import Any

USING_MPI = ("mpi4py", "horovod")


def describe() -> dict[str, Any]:
    """Return the version, the packages by their names, and the directories of those that use MPI."""
    # A broken distribution has no metadata.
    found = [(each.metadata["Name"], each.version) for each in metadata.distributions() if each.metadata]
    packages = {str(name).lower().replace("_", "-").replace(".", "-"): str(version) for name, version in found if name}
    places = {name: spec for name in USING_MPI if (spec := util.find_spec(name)) is not None}
    return {
        "version": ".".join(map(str, sys.version_info[:3])),
        "packages": dict(sorted(packages.items())),
        "places": {name: list(spec.submodule_search_locations or ()) for name, spec in places.items()},
    }


if __name__ == "__main__":
    json.dump(describe(), sys.stdout)
