"""Implementation of ``hidl stack fetch``, ``push`` and ``containerize``, which prepare installations on other machines.

``fetch`` downloads everything that an installation needs to a directory, for machines without network access.

::

    <to>/manifest.json     the files of each Spack package, with SHA-256
    <to>/locks/            lockfiles
    <to>/wheels/           the wheels of the lockfiles, and clingo, which Spack requires
    <to>/sources/          a Spack mirror
    <to>/spack-packages/   Spack's package repository, with its commit

``containerize`` defines container images with the packages whose hashes are in a stack's lockfile. The base image is a
tag, which may move, and hidl's own wheels are the files beside the definition.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from hidl_cli import documents, paths
from hidl_cli.documents import sha256
from hidl_cli.errors import HidlError, MissingPrecondition, UsageError
from hidl_cli.quoting import sh, sh_line
from hidl_cli.redaction import holds_secret, redact
from hidl_cli.stack import PORTABLE_PLATFORMS, install, own_wheel
from hidl_cli.stack.installation import variables
from hidl_cli.stack.own_wheel import OwnWheel
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers.spack import caches, call, host
from hidl_cli.stack.providers.spack.environment import COMMIT, part_of
from hidl_cli.stack.providers.spack.host import CLINGO
from hidl_cli.stack.providers.wheels import WheelInstaller
from hidl_cli.templates import render_script

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site, Wheels
    from hidl_cli.stack.order import Order, Progress

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


_ROOT = Path("/opt/hidl")
_PYTHON = re.compile(r"cp(\d)(\d+)")
#: Version suffix of torch from one of PyTorch's own indexes, each of which contains a single build.
_BUILD_OF_TORCH = re.compile(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)")
_TORCH_INDEX = "https://download.pytorch.org/whl"
#: Without these variables, enroot and the NVIDIA runtime of Docker and Podman give a container no GPU or no libcuda.
_FOR_NVIDIA = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


#: Architectures as ``uname -m`` prints them, and as images are named.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class ImageDefinition:
    """The files from which an image is built.

    Attributes:
        files: Texts by the name of the file.
        wheels: Wheels of hidl's own distributions.
        notes: Package sources of the site that the image does not use, and why.
    """

    files: Mapping[str, str]
    wheels: tuple[OwnWheel, ...]
    notes: tuple[str, ...] = ()


def platform_of(site: Site) -> str:
    """Return the platform of the nodes, or of this machine if the site file does not define one.

    Raises ``UsageError`` if there are no lockfiles for it.
    """
    found = f"linux-{site.node_of_stacks().arch or platform.machine()}"
    if found not in PORTABLE_PLATFORMS:
        raise UsageError(
            f"the nodes of site {site.name} are {found}, for which there are no lockfiles",
            hint=f"supported: {', '.join(PORTABLE_PLATFORMS)}",
        )
    return found


def define_image(plan: InstallPlan, wheels: Wheels, *, base: str | None = None) -> ImageDefinition:
    """Return the definitions of an image that contains a stack.

    Args:
        plan: The plan of an installation from wheels, for the platform of the image.
        wheels: The site's sources of wheels.
        base: The image to start from, which has the Python of the lockfile; None selects Python's official image.

    Raises:
        UsageError: The stack consists of more than wheels, or of wheels in directories that the image does not have, or
            the base is not the name of an image.
    """
    if plan.provider != "wheels":
        raise UsageError(
            f"stack {plan.stack} is not installed from wheels, but by {plan.provider}",
            hint="use --provider wheels, or `spack containerize` in the stack's Spack environment",
        )
    if missing := [build.recipe.name for build in plan.builds] + list(plan.extra.references):
        raise UsageError(
            f"stack {plan.stack} contains {', '.join(missing)}, which hidl builds from source",
            hint="choose a stack that contains only wheels, or run pip install hidl and hidl install in the image",
        )
    if local := [place for place in plan.extra.find_links if not _is_remote(place)]:
        raise UsageError(
            f"stack {plan.stack} has wheels in {redact(local[0])}, a directory that the image does not have",
            hint="name a page or an index with these wheels in the stack",
        )
    version = _PYTHON.fullmatch(plan.target.python)
    if base is None and version is None:
        raise UsageError(f"no official image for Python {plan.target.python}", hint="name one with --base")
    if base is not None and not _IMAGE.fullmatch(base):
        raise UsageError(f"invalid --base {base!r}", hint="use the name of an image, such as python:3.11-slim")
    name, prefix = plan.lock.filename, _ROOT / plan.stack
    values = {
        "stack": plan.stack,
        "title": plan.title,
        "lock": name,
        "base": base or (f"python:{version[1]}.{version[2]}-slim" if version else ""),
        "machine": plan.target.machine,
        "platform": f"linux/{_ARCHITECTURES[plan.target.machine]}",
        "commands": list(_commands(plan, wheels, prefix)),
        "variables": {**variables(prefix, plan.stack), **(_FOR_NVIDIA if plan.target.accelerator == "cuda" else {})},
        "bin": str(prefix / "bin"),
        "lib": str(prefix / "lib"),
    }
    return ImageDefinition(
        {
            "Dockerfile": render_script("Dockerfile.j2", values),
            f"{plan.stack}.def": render_script("apptainer.def.j2", values),
            name: plan.lock.wheels.text(),
        },
        plan.own,
        tuple(_image_notes(wheels)),
    )


def _image_notes(wheels: Wheels) -> Iterator[str]:
    """Yield the sources of the site that are not written into the definition."""
    for place in wheels.find_links:
        if not _is_remote(place):
            yield f"the image does not use {redact(place)}: it is a directory of the site"
    for place in filter(None, (wheels.index_url, *wheels.extra_index_urls, *wheels.find_links)):
        if _is_remote(place) and holds_secret(place):
            yield f"the image does not use {redact(place)}: its credentials would be in the image"


def _is_remote(place: str) -> bool:
    return place.startswith(("https://", "http://"))


def _usable(places: Iterable[str | None]) -> list[str]:
    return [place for place in places if place and _is_remote(place) and not holds_secret(place)]


def _commands(plan: InstallPlan, wheels: Wheels, prefix: Path) -> Iterator[str]:
    """Yield the shell commands that install the stack in the image."""
    pip = [str(prefix / "bin" / "pip"), "install", "--no-cache-dir", "--no-deps"]
    torch = _BUILD_OF_TORCH.search(plan.lock.version("torch") or "")
    indexes = [*plan.extra.indexes, *_usable(wheels.extra_index_urls)]
    indexes += [f"{_TORCH_INDEX}/{torch[1]}"] if torch else []
    machine = plan.target.machine
    yield f'[ "$(uname -m)" = {sh(machine)} ] || {{ echo {sh(f"this image is for {machine}")} >&2; exit 1; }}'
    yield sh_line(["python3", "-m", "venv", str(prefix)])
    sources = [f"--index-url={url}" for url in _usable([wheels.index_url])]
    sources += [f"--extra-index-url={url}" for url in dict.fromkeys(indexes)]
    sources += [f"--find-links={place}" for place in (*plan.extra.find_links, *_usable(wheels.find_links))]
    yield sh_line([*pip, "--require-hashes", *sources, "-r", str(_ROOT / "lock.txt")])
    yield sh_line([*pip, "--no-index", *(str(_ROOT / "wheels" / wheel.file.name) for wheel in plan.own)])


def write_image(definition: ImageDefinition, directory: Path, *, force: bool = False) -> None:
    """Write the files and build the wheels in a directory, and delete older wheels once all others are written.

    Raises ``UsageError`` if a file exists already and ``force`` is not set, or if ``wheels`` is a link or contains
    wheels of other packages, and ``HidlError`` if the directory cannot be written.
    """
    if (directory / "wheels").is_symlink():
        raise UsageError(f"{directory / 'wheels'} is a link", hint="choose another --output")
    names = {wheel.file.name.partition("-")[0] for wheel in definition.wheels}
    wheels = [*(directory / "wheels").glob("*.whl")]  # the image would contain them
    if others := sorted(wheel for wheel in wheels if wheel.name.partition("-")[0] not in names):
        raise UsageError(f"{others[0]} is not a package of hidl", hint="choose another --output")
    existing = [directory / name for name in definition.files if (directory / name).exists()]
    if not force and (existing := [*existing, *wheels]):
        raise UsageError(f"{existing[0]} already exists", hint="overwrite it with --force")
    try:
        (directory / "wheels").mkdir(parents=True, exist_ok=True)
        for name, text in definition.files.items():
            documents.write_text(directory / name, text)
        for wheel in definition.wheels:
            own_wheel.build(wheel)
            shutil.copyfile(wheel.file, directory / "wheels" / wheel.file.name)
        for old in {*wheels} - {directory / "wheels" / wheel.file.name for wheel in definition.wheels}:
            old.unlink()
    except OSError as error:
        raise HidlError(f"{directory} cannot be written: {error.strerror}", hint="choose another --output") from error
