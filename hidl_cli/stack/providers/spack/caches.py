"""Build caches, and the export of an installation's environment for use with plain Spack."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli import documents, paths
from hidl_cli.errors import BuildFailed, MissingPrecondition, UsageError
from hidl_cli.quoting import sh, sh_line
from hidl_cli.site.schema import OCI, Site
from hidl_cli.stack.providers.spack import call, host
from hidl_cli.stack.providers.spack.environment import (
    ENVIRONMENT,
    SpackPart,
    cache_of,
    install_tree,
    mirror_name,
    plain_yaml,
)

if TYPE_CHECKING:
    from hidl_cli.stack.installation import Installation
    from hidl_cli.stack.order import Progress
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.providers.spack.lock import SpackLock

_SETUP = """\
export {variables}
. {setup}
spack env activate {directory}
"""
_HASH = re.compile(r"^([a-z2-7]{32})\s", re.MULTILINE)


def available(
    part: SpackPart, environment: Path, log: Path, *, keys: Iterable[str], python: Path, no_network: bool
) -> frozenset[str]:
    """Trust the site's public keys, and return the hashes of the packages in the environment's build caches."""

    def spack(title: str, *words: str) -> str:
        step = call.step(part.instance, environment, title, *words, python=python, offline=no_network)
        return call.run(step, log, doing=f"failed to {title}")

    for key in keys:
        spack(f"trust the key {key}", "gpg", "trust", key)
    listed = spack("read the index of the build caches", "buildcache", "list", "--allarch", "--very-long")
    return frozenset(_HASH.findall(listed))


def to_build(lock: SpackLock, there: frozenset[str]) -> frozenset[str]:
    """Return the hashes of the packages to build from source. Those in ``there`` are installed or in a build cache.

    A package from a cache only needs its link and run dependencies. A package that is built also needs its build tools.
    """
    specs = lock.content["concrete_specs"]
    seen: set[str] = set()
    waiting = list(lock.roots)
    while waiting:
        key = waiting.pop()
        if key in seen or specs[key].get("external"):
            continue
        seen.add(key)
        for needed in specs[key].get("dependencies", ()):
            types = set(needed.get("parameters", {}).get("deptypes", ("build", "link", "run")))
            if key not in there or types & {"link", "run"}:
                waiting.append(needed["hash"])
    return frozenset(seen - there)


def push(
    plan: InstallPlan, part: SpackPart, site: Site, name: str, *, key: str | None, log: Path, progress: Progress
) -> str:
    """Push an installation's packages to a build cache, update the cache's index and return the cache's URL.

    Args:
        plan: The installation, whose packages are in the store.
        part: The Spack part of the plan.
        site: The site.
        name: A key in the site's ``spack.build_caches``, a URL or a path.
        key: The secret key for signing; if None, packages are not signed.
        log: The file that Spack's output is appended to.
        progress: Reports the step.

    Raises:
        MissingPrecondition: The stack is not installed, or the cache requires signatures and no key is given.
        UsageError: A key is given for an OCI registry.
    """
    known = cache_of(site, name)
    if key and known.url.startswith(OCI):
        raise UsageError(f"--key cannot be used with {name}: Spack does not sign packages in OCI registries")
    if not part.lock.roots <= call.installed(part):
        raise MissingPrecondition(
            f"stack {plan.stack} is not installed: nothing to push", hint=f"hidl install {plan.stack} --provider spack"
        )
    if known.signed and key is None and name in site.spack.build_caches:
        raise MissingPrecondition(
            f"build cache {name} requires signed packages", hint="--key KEY, or `signed: false` in the site's file"
        )
    # Spack only uses the user and password of a cache in the site file if the cache is passed by name.
    mirror = mirror_name(name) if name in site.spack.build_caches else known.url
    signing = ("--key", key) if key else ("--unsigned",)
    title = f"push stack {plan.stack} to {name}"
    words = ("push", *signing, "--without-build-dependencies", "--update-index", mirror)
    with paths.temporary_directory("spack") as directory, progress.step(title, log):
        # The environment in the prefix may be older than the build caches in the site file.
        Path(directory, "spack.yaml").write_text(part.environment.text, encoding="utf-8")
        Path(directory, "spack.lock").write_text(part.lock.spack_lock, encoding="utf-8")
        step = call.step(part.instance, Path(directory), title, "buildcache", *words, python=None)
        call.run(step, log, doing=f"failed to {title}", failed=BuildFailed)
    return known.url


def missing(lock: SpackLock, hashes: frozenset[str]) -> Mapping[str, str]:
    """Return the name and version of each package in ``hashes``, keyed by hash."""
    return {node.hash: f"{node.name} {node.version}" for node in lock.nodes if node.hash in hashes}


def export_environment(installation: Installation, directory: Path) -> str:
    """Copy an installation's environment for use with plain Spack, and return the shell commands that activate it.

    The copy installs into a store below ``directory`` and uses the packages of the installation as an upstream, so
    ``spack add``, ``spack develop`` and ``spack containerize`` do not change the installation. An environment that
    already exists in ``directory`` is kept.

    Raises:
        MissingPrecondition: The installation was not made by Spack.
    """
    import yaml

    spack = installation.manifest.get("spack")
    original = installation.prefix / ENVIRONMENT
    if not spack or not (original / "spack.yaml").is_file():
        raise MissingPrecondition(
            f"{installation.prefix} was not installed by Spack", hint="hidl install STACK --provider spack"
        )
    if not (directory / "spack.yaml").is_file():
        document = yaml.safe_load((original / "spack.yaml").read_text(encoding="utf-8"))
        content = document["spack"]
        config = content["config"]
        tree = install_tree(document)
        config["install_tree"] = {**config["install_tree"], "root": str(directory / "store")}
        config["build_stage"] = [str(directory / "stage")]
        config["source_cache"] = str(directory / "sources")
        content["view"]["default"]["root"] = str(directory / "view")
        content["upstreams"] = {"hidl": {"install_tree": str(tree)}, **content.get("upstreams", {})}
        documents.write_text(directory / "spack.lock", (original / "spack.lock").read_text(encoding="utf-8"))
        documents.write_text(directory / "spack.yaml", plain_yaml(document))
    variables = sh_line([f"{name}={value}" for name, value in call.variables(host.made_python()).items()])
    setup = sh(str(Path(spack["root"], "share", "spack", "setup-env.sh")))
    return _SETUP.format(variables=variables, setup=setup, directory=sh(str(directory)))
