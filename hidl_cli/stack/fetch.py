"""Implementation of ``hidl stack fetch`` and ``hidl stack push``, which prepare installations on other machines.

``fetch`` downloads everything that an installation needs to a directory, for machines without network access.

::

    <to>/manifest.json     the files of each Spack package, with SHA-256
    <to>/locks/            lockfiles
    <to>/wheels/           the wheels of the lockfiles, and clingo, which Spack requires
    <to>/sources/          a Spack mirror
    <to>/spack-packages/   Spack's package repository, with its commit
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from hidl_cli import documents, paths
from hidl_cli.documents import sha256
from hidl_cli.errors import MissingPrecondition
from hidl_cli.stack import install, own_wheel
from hidl_cli.stack.providers.spack import caches, call, host
from hidl_cli.stack.providers.spack.environment import COMMIT, part_of
from hidl_cli.stack.providers.spack.host import CLINGO
from hidl_cli.stack.providers.wheels import WheelInstaller

if TYPE_CHECKING:
    from hidl_cli.stack.order import Order, Progress
    from hidl_cli.stack.plan import InstallPlan

MANIFEST = "manifest.json"


def fetch(order: Order, to: Path, progress: Progress) -> InstallPlan:
    """Download everything that an installation request needs into the directory ``to``.

    The directory may already contain other stacks. Raises ``MissingPrecondition`` or ``BuildFailed`` if something is
    not available.
    """
    plan = install.plan_install(order).plan
    if plan is None:
        install.make_lock(order, progress)
        plan = install.plan_install(order).plan
        assert plan is not None
    to.mkdir(parents=True, exist_ok=True)
    for own in plan.own:
        own_wheel.build(own)
    uv = WheelInstaller.for_site(order.site)
    uv = uv.with_sources(plan.extra, plan.target, offline=order.offline, lock=plan.lock.wheels)
    log = install.new_log(plan)
    _wheels(plan, uv, to, log, progress)
    packages: Mapping[str, Any] = {}
    if plan.provider == "spack":
        packages = _sources(plan, uv, to, log, progress)
        _recipes(plan, to, progress)
    documents.write_text(to / "locks" / plan.lock.filename, plan.lock.text())
    documents.write_json(to / MANIFEST, {"schema": "hidl.mirror/1", "packages": {**_known(to), **packages}})
    return plan


def push(order: Order, cache: str, progress: Progress, *, key: str | None = None) -> tuple[str, InstallPlan]:
    """Push an installed stack to a build cache and return the cache's URL and the plan.

    If the cache is in a local directory, the lockfile and the wheels are copied there as well, so that it can be used
    with ``--mirror`` on machines without network access.

    Args:
        order: The stack, which the provider ``spack`` has installed.
        cache: A name in the site's ``spack.build_caches``, a URL or a path.
        progress: Reports the steps.
        key: Secret key for signing; if None, packages are not signed.

    Raises:
        MissingPrecondition: The stack was not installed by Spack, or its packages must be signed.
        BuildFailed: Spack failed.
    """
    plan = install.plan_install(order).plan
    if plan is None or plan.provider != "spack":
        raise MissingPrecondition(
            f"nothing to push: stack {order.stack.name} was not installed by Spack",
            hint=f"hidl install {order.stack.name} --provider spack",
        )
    log = install.new_log(plan)
    url = caches.push(plan, part_of(plan), order.site, cache, key=key, log=log, progress=progress)
    if url.startswith("file://"):
        place = Path(unquote(urlsplit(url).path))
        _wheels(plan, WheelInstaller.for_site(order.site), place, log, progress)
        documents.write_text(place / "locks" / plan.lock.filename, plan.lock.text())
    return url, plan


def _wheels(plan: InstallPlan, uv: WheelInstaller, to: Path, log: Path, progress: Progress) -> None:
    wanted = [(plan.lock.wheels.body(), f"{len(plan.lock.wheels.packages)} wheels")]
    if plan.provider == "spack":
        wanted.append((f"{CLINGO}\ncffi\npycparser\n", "the wheel of clingo"))
    for text, what in wanted:
        if not text:
            continue
        with paths.temporary_directory("fetch") as directory, progress.step(f"fetch {what}", log):
            file = Path(directory, "wanted.txt")
            file.write_text(text, encoding="utf-8")
            uv.run(uv.download(f"fetch {what}", file, to / "wheels", plan.target), log)


def _sources(plan: InstallPlan, uv: WheelInstaller, to: Path, log: Path, progress: Progress) -> dict[str, Any]:
    """Mirror the lockfile's sources, and return each package's files by the package's hash."""
    part = part_of(plan)
    interpreter = host.python(plan.target, uv, log, progress, offline=False, wheels=to / "wheels")
    with paths.temporary_directory("fetch") as directory:
        # Spack empties the stages of the packages that it mirrors, so a separate stage directory is used.
        staged = part.environment.staged_in(Path(directory, "stage"))
        Path(directory, "spack.yaml").write_text(staged.text, encoding="utf-8")
        Path(directory, "spack.lock").write_text(part.lock.spack_lock, encoding="utf-8")
        words = ("mirror", "create", "--all", "--directory", str(to / "sources"))
        title = f"fetch the sources of {part.to_install} packages"
        command = call.step(part.instance, Path(directory), title, *words, python=interpreter)
        with progress.step(title, log):
            call.run(command, log, doing=f"failed to {title}")
    packages = {}
    for node in part.lock.nodes:
        if node.external is None:
            found = sorted((to / "sources" / node.name).glob("*"))
            files = {file.relative_to(to / "sources").as_posix(): sha256(file) for file in found if file.is_file()}
            packages[node.hash] = {"name": node.name, "version": node.version, "files": files}
    return packages


def _recipes(plan: InstallPlan, to: Path, progress: Progress) -> None:
    """Copy Spack's package repository without its history."""
    part = part_of(plan)
    copy = to / "spack-packages"
    state = part.lock.repositories["builtin"]
    if (copy / COMMIT).is_file() and (copy / COMMIT).read_text(encoding="utf-8").strip() == state:
        return
    builtin = part.places.builtin or next(iter(part.places.clone.glob("repos/spack_repo/builtin")), None)
    if builtin is None:
        raise MissingPrecondition(
            "Spack's package repository not found", hint="clone spack-packages and set HIDL_SPACK_PACKAGES to its path"
        )
    with progress.step("copy Spack's packages"):
        beside = copy.with_name(f".{copy.name}")
        shutil.rmtree(beside, ignore_errors=True)
        inside = beside / "repos" / "spack_repo" / "builtin"
        shutil.copytree(builtin, inside, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        (beside / COMMIT).write_text(f"{state}\n", encoding="utf-8")
        shutil.rmtree(copy, ignore_errors=True)
        beside.replace(copy)


def _known(to: Path) -> dict[str, Any]:
    try:
        return dict(documents.read_json(to / MANIFEST)["packages"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
