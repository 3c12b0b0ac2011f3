"""The environment of a stack on a site: the ``spack.yaml`` that Spack concretizes and installs.

A pure function: the same site, stack and places give the same text.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli.errors import InvalidInput
from hidl_cli.mpi import TRAITS, Family
from hidl_cli.site.software import BuildCache
from hidl_cli.stack.providers.spack import packages
from hidl_cli.stack.providers.spack.instance import COMPILERS_ARE_PACKAGES

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.providers.spack.places import Places
    from hidl_cli.stack.schema import Stack

#: The release of spack-packages that is cloned where the user has none: the one that hidl's tests use.
PACKAGES_URL = "https://github.com/spack/spack-packages.git"
PACKAGES_TAG = "v2026.03.0"

#: What Spack keeps, and where, decides nothing about what it builds.
_NO_INPUT = ("view", "repos", "mirrors", "modules")
_NO_CONFIG_INPUT = (
    "install_tree",
    "source_cache",
    "misc_cache",
    "build_stage",
    "build_jobs",
    "environments_root",
    "binary_index_ttl",
)


@dataclass(frozen=True)
class Environment:
    """``document`` is the content of ``spack.yaml``; ``warnings`` and ``gaps`` are for the user, a line each.

    ``mpi`` and ``mpi_version``: the family of its MPI library, and its version where the site has it already.
    ``lacks_mpi``: why there can be none, where Spack builds none and the site's file does not place it.
    """

    document: Mapping[str, Any]
    mpi: Family
    mpi_version: str | None
    external_mpi: bool
    warnings: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    lacks_mpi: str | None = None

    @property
    def text(self) -> str:
        """``spack.yaml`` itself."""
        import yaml

        head = "# Written by hidl; the stack's recipe and the site's file are what to change.\n"
        lacking = [f"{self.mpi} is not placed: {self.lacks_mpi}"] if self.lacks_mpi else []
        head += "".join(f"# Missing: {gap}.\n" for gap in (*self.gaps, *lacking))
        return head + yaml.dump(self.document, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=110)

    def staged_in(self, stage: Path) -> Environment:
        """The same, but built in ``stage``."""
        spack = self.document["spack"]
        config = spack["config"] | {"build_stage": [str(stage)]}
        return replace(self, document={"spack": spack | {"config": config}})

    @property
    def inputs(self) -> str:
        """The SHA-256 of all that decides what is built: not of the places that Spack keeps things in."""
        spack = self.document["spack"]
        config = {key: value for key, value in spack["config"].items() if key not in _NO_CONFIG_INPUT}
        deciding = {key: value for key, value in spack.items() if key not in _NO_INPUT} | {"config": config}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def environment(
    site: Site,
    stack: Stack,
    where: Places,
    *,
    view: Path,
    release: tuple[int, int],
    system: str = "linux",
) -> Environment:
    """The environment of ``stack`` on ``site`` for a Spack of ``release``, with its view at ``view``.

    ``system``: the operating system as Spack 0.23 calls it (debian12, rhel8). Raises ``InvalidInput`` where the stack
    has no specs for Spack.
    """
    if stack.spack is None or not stack.spack.specs:
        raise InvalidInput(
            f"stack {stack.name} does not say what Spack is to build",
            hint="`spack: {specs: [...]}` in its file, or another provider: --provider wheels",
        )
    chosen = packages.choose(site, stack)
    compilers_are_packages = release >= COMPILERS_ARE_PACKAGES
    known = dict(chosen.packages)
    spack: dict[str, Any] = {
        "specs": roots(site, stack),
        "view": {"default": {"root": str(view)}},
        "concretizer": _concretizer(release),
        "packages": known,
        "config": _config(site, where),
        "repos": _repositories(where) if compilers_are_packages else _old_repositories(where),
    }
    if not compilers_are_packages:
        for name in (*{compiler.package for compiler in site.compilers.values()}, "c", "cxx", "fortran"):
            known.pop(name, None)
        compilers = packages.compilers_of_old(site)
        for entry in compilers:
            entry["compiler"]["operating_system"] = system
        spack["compilers"] = compilers
    warnings = []
    if stack.spack.deprecated:
        spack["config"]["deprecated"] = True
        warnings.append(f"versions that Spack calls deprecated are allowed: {stack.spack.deprecated}")
    mirrors = _mirrors(site, where)
    if mirrors:
        spack["mirrors"] = mirrors
    spack["modules"] = _modules(site, where)
    return Environment(
        {"spack": spack},
        mpi=chosen.mpi,
        mpi_version=chosen.version,
        external_mpi=chosen.external_mpi,
        warnings=tuple(warnings),
        gaps=chosen.gaps,
        lacks_mpi=None if chosen.external_mpi else _unbuildable(chosen.mpi, stack.spack.deprecated, release),
    )


def roots(site: Site, stack: Stack) -> list[str]:
    """The specs that Spack builds: all of the stack's, but those that come as wheels where the site wants that."""
    if stack.spack is None:
        return []
    return [spec for spec in stack.spack.specs if not (site.spack.wheels and name_of(spec) in stack.spack.wheels)]


def _unbuildable(mpi: Family, admitted: str | None, release: tuple[int, int]) -> str | None:
    """Why Spack does not build this MPI library. ``admitted``: why the stack has it build what it calls deprecated."""
    if TRAITS[mpi].of_site_only:
        return "Spack cannot build it"
    if TRAITS[mpi].is_deprecated and release >= COMPILERS_ARE_PACKAGES and not admitted:
        return "Spack calls all its versions deprecated"
    return None


def name_of(spec: str) -> str:
    """The package that a spec is of."""
    return re.split(r"[^a-z0-9_.-]", spec, maxsplit=1)[0]


def _config(site: Site, where: Places) -> dict[str, Any]:
    config: dict[str, Any] = {
        "install_tree": {"root": str(where.spack / "store")},
        "source_cache": str(where.sources),
        "misc_cache": str(where.misc),
        "build_stage": [str(where.stage)],
        "db_lock_timeout": 60,
    }
    if site.spack.build_caches:
        config["binary_index_ttl"] = 0  # Spack reads the indexes again each time, instead of every ten minutes
    if site.spack.jobs:
        config["build_jobs"] = site.spack.jobs
    return config


def _concretizer(release: tuple[int, int]) -> dict[str, Any]:
    """One consistent set of packages, resolved from the recipes alone: the same everywhere.

    ``all`` requires the target, which may be newer than the processor of a login node or a build host. The static
    analysis leaves out of the search what the requirements exclude, which takes a fraction of the time.
    """
    settings: dict[str, Any] = {"unify": True, "reuse": False, "targets": {"host_compatible": False}}
    return settings | ({"static_analysis": True} if release >= COMPILERS_ARE_PACKAGES else {})


def _repositories(where: Places) -> dict[str, Any]:
    """hidl's packages come first, then Spack's: those of the user, or a clone of the release that is known to do."""
    builtin: Any = str(where.builtin)
    if where.builtin is None:
        builtin = {"git": PACKAGES_URL, "tag": PACKAGES_TAG, "destination": str(where.clone)}
    return {"hidl": str(where.own), "builtin": builtin}


def _old_repositories(where: Places) -> list[str]:
    """Spack 0.23 has its packages with it, and reads none of hidl's (package API v2)."""
    return [str(where.builtin)] if where.builtin else []


def _mirrors(site: Site, where: Places) -> dict[str, Any]:
    """The mirror that was brought along comes first, then the site's."""
    mirrors: dict[str, Any] = {}
    if where.mirror is not None:
        mirrors["brought"] = {"url": (where.mirror / "sources").as_uri(), "source": True, "binary": False}
    for name, url in site.spack.mirrors.items():
        mirrors[name] = {"url": url, "source": True, "binary": False}
    for name in site.spack.build_caches:
        known = cache_of(site, name)
        mirrors[f"{name}-binaries"] = {"url": known.url, "source": False, "binary": True, "signed": known.signed}
    return mirrors


def cache_of(site: Site, name: str) -> BuildCache:
    """Return the build cache of that name; if the site has none, the one at that URL or path."""
    known = site.spack.build_caches.get(name, name)
    cache = BuildCache(url=known) if isinstance(known, str) else known
    if cache.url.startswith(("/", "~", "$")):
        place = Path(os.path.expandvars(cache.url)).expanduser()
        return cache.model_copy(update={"url": place.absolute().as_uri()})
    return cache


def _modules(site: Site, where: Places) -> dict[str, Any]:
    """Modulefiles of Spack's own: none, or those of one system, for what was asked for alone."""
    if site.spack.modules is None:
        return {"default": {"enable": []}}
    kind = site.spack.modules
    return {
        "default": {
            "enable": [kind],
            "roots": {kind: str(where.spack / "modules")},
            kind: {"hide_implicits": True},
        }
    }


def _dumper() -> type:
    """Plain YAML without anchors: Spack's own reader would keep them, and people are to read it."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    return Plain
