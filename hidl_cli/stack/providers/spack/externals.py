"""A draft of a site's ``externals``, based on ``spack external find``. Users correct the draft before they use it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hidl_cli import paths
from hidl_cli.mpi import TRAITS
from hidl_cli.stack.order import InstallStep
from hidl_cli.stack.providers.spack import call
from hidl_cli.stack.providers.spack.host import PLACES_VARIABLE as VARIABLE
from hidl_cli.stack.providers.spack.host import Instance

_SPEC = re.compile(r"(?P<name>[a-z0-9_-]+)@=?(?P<version>[A-Za-z0-9._-]+)\s*(?P<variants>.*)")
_HEAD = """\
# A draft from `spack external find`, which recognizes programs by name: it confuses MPI libraries, and finds several
# packages in one prefix. Keep what is right, move MPI libraries to `mpi` and compilers to `compilers`, and compare the
# file with the machine: hidl site check --on-host NAME
"""


def draft(instance: Instance) -> str:
    """Return YAML for a site file, with MPI libraries and compilers in comments only."""
    import yaml

    with paths.temporary_directory("spack") as directory:
        place = Path(directory)
        repositories = os.environ.get(VARIABLE)
        if repositories:
            builtin = Path(repositories, "repos", "spack_repo", "builtin")
            (place / "repos.yaml").write_text(f"repos: {{builtin: {builtin}}}\n", encoding="utf-8")
        log = place / "log"
        log.touch()
        argv = (str(instance.program), "--color", "never", "-C", str(place), "external", "find", "--scope", "user")
        variables = call.variables(None) | {"SPACK_USER_CONFIG_PATH": str(place)}
        del variables["SPACK_DISABLE_LOCAL_CONFIG"]
        call.run(InstallStep("look for software", argv, variables), log, doing="Spack could not search for software")
        file = place / "packages.yaml"
        packages: dict[str, Any] = (
            yaml.safe_load(file.read_text(encoding="utf-8"))["packages"] if file.is_file() else {}
        )
    return _HEAD + _text(packages)


def _text(packages: dict[str, Any]) -> str:
    import yaml

    kept, remarks = {}, []
    mpi_packages = {traits.spack for traits in TRAITS.values()}
    for name, entry in sorted(packages.items()):
        for external in entry.get("externals", []):
            found = _SPEC.match(external["spec"])
            if name in mpi_packages or "compilers" in (external.get("extra_attributes") or {}):
                remarks.append(f"# left out: {external['spec']} in {external.get('prefix')}")
            elif found and name not in kept:
                kept[name] = {
                    "version": found["version"],
                    "prefix": external.get("prefix"),
                    **({"variants": found["variants"]} if found["variants"] else {}),
                }
            else:
                remarks.append(f"# also found: {external['spec']} in {external.get('prefix')}")
    body = yaml.safe_dump({"externals": kept}, sort_keys=True)
    return body + "".join(f"{remark}\n" for remark in remarks)
