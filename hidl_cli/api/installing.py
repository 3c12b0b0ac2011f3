"""Installations: from what is asked to orders, and from orders to installed stacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hidl_cli.api.options import absolute, time_limit
from hidl_cli.errors import BuildFailed, HidlError, InvalidInput, UsageError

if TYPE_CHECKING:
    from hidl_cli.launch.placement import Asked
    from hidl_cli.site.completion import Completed
    from hidl_cli.site.schema import ProviderName, Site
    from hidl_cli.stack.derived import Derived
    from hidl_cli.stack.install import LeftOut, Result
    from hidl_cli.stack.order import Order, Progress
    from hidl_cli.stack.schema import Stack
    from hidl_cli.stack.verify import Verifier


@dataclass(frozen=True)
class Installed:
    """An installation: ``action`` is installed, switched or nothing to do; ``document`` is its manifest."""

    stack: str
    prefix: Path
    action: str
    document: Mapping[str, Any] = field(repr=False)

    def _repr_html_(self) -> str:
        from hidl_cli.api.running import facts

        return facts([("stack", self.stack), ("prefix", str(self.prefix)), ("action", self.action)])


@dataclass(frozen=True)
class Arranged:
    """Orders and where they are verified; ``left_out``: stacks that need what only the user can bring.

    ``completed``: the site with what was asked of this machine. ``derived``: the stack of the user's own, if any.
    """

    orders: Sequence[Order]
    left_out: Sequence[LeftOut]
    completed: Completed
    root: Path
    verification: str
    derived: Derived | None
    job: Asked

    def carry_out(self, progress: Progress) -> Iterator[Result]:
        """Install each stack."""
        from functools import partial

        from hidl_cli.stack.install import install, install_each

        verifier = verifier_for(self.completed.site, self.verification, progress, self.job)
        if self.derived:
            from hidl_cli.stack.derived import settle

            settle(self.derived, self.orders[0], progress)
        yield from install_each(self.orders, partial(install, verifier=verifier), progress)


def arrange(
    stacks: Sequence[str],
    *,
    site: str | None,
    prefix: str | None,
    own: bool,
    locked: bool,
    offline: bool,
    packages: Sequence[str],
    requirements: Sequence[str],
    name: str | None,
    sources: Sequence[str],
    provider: str | None,
    spack: str | None,
    specs: Sequence[str],
    mirror: str | None,
    jobs: int | None,
    cache_only: bool,
    link: str | None,
    device: str | None,
    verify: str | None,
    job: Asked,
    keep: bool,
    say: Callable[[str], object],
) -> Arranged:
    """Return the orders of ``hidl install`` with these options; ``keep``: write what this machine tells of the site."""
    from hidl_cli.mpi import FAMILIES
    from hidl_cli.schedulers.attached import build_command
    from hidl_cli.site import completion
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import install as several
    from hidl_cli.stack import installation
    from hidl_cli.stack.checks import load_stack
    from hidl_cli.stack.order import Order

    chosen = provider_name(provider)
    completed = completion.complete(load_site(site), chosen, keep=keep, say=say)
    where = for_device(_linked(completed.site, link), device)
    if own and prefix:
        raise UsageError("--own and --prefix exclude each other")
    root = installation.own_root() if own else installation.installation_root(where, prefix)
    derived = derive_stack(where, stacks, packages, requirements, name)
    wanted = [derived.stack] if derived else [load_stack(each) for each in dict.fromkeys(stacks or _of_the_site(where))]
    named = [build.name for stack in wanted for build in stack.builds]
    if (chosen or where.install.provider) == "rpm":
        named += [*where.rpms, *where.mpi, *FAMILIES]
    archives = _sources(sources, named)
    with_spack = (chosen or where.install.provider) == "spack"
    if cache_only and not (with_spack and where.spack.build_caches):
        raise UsageError(
            "--cache-only requires the provider spack and a build cache",
            hint=f"`spack: {{build_caches: {{centre: URL}}}}` in the file of site {where.name}",
        )
    wanted = [with_specs(stack, specs, by_spack=with_spack) for stack in wanted]
    attached = build_command(where, os.environ, job) if with_spack else ()
    orders = [
        Order(
            where,
            stack,
            root,
            locked=locked,
            offline=offline,
            sources=archives,
            provider=chosen,
            spack=_path(spack),
            mirror=_path(mirror),
            jobs=jobs,
            attached=attached,
            cache_only=cache_only,
        )
        for stack in wanted
    ]
    verification = _verification(where, verify)
    orders, left_out = (orders, []) if stacks else several.with_what_they_need(orders)
    return Arranged(orders, left_out, completed, root, verification, derived, job)


def install(
    *stacks: str,
    site: str | None = None,
    prefix: str | PathLike[str] | None = None,
    own: bool = False,
    locked: bool = False,
    offline: bool = False,
    packages: Sequence[str] = (),
    requirements: Sequence[str | PathLike[str]] = (),
    name: str | None = None,
    sources: Mapping[str, str | PathLike[str]] | None = None,
    provider: Literal["wheels", "spack", "rpm"] | None = None,
    spack: str | PathLike[str] | None = None,
    specs: Sequence[str] = (),
    mirror: str | PathLike[str] | None = None,
    jobs: int | None = None,
    cache_only: bool = False,
    link: Literal["copy", "hard"] | None = None,
    device: Literal["cpu", "gpu"] | None = None,
    verify: Literal["here", "job", "skip"] | None = None,
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    reservation: str | None = None,
    time: float | str | None = None,
    progress: Callable[[str], object] | None = None,
) -> list[Installed]:
    """Install stacks, or those of the site: ``hidl install``. What is installed already stays as it is.

    - ``packages`` and ``requirements`` (files in pip's format) make, with one stack, the stack ``name`` of your own
    - ``locked``: fail where no lock fits; ``offline``: no network; ``sources``: archives of what is built, by name
    - ``provider``, ``spack`` (its directory), ``mirror``, ``jobs`` (compilers at once), ``prefix``: None is the site's
    - ``specs``: what Spack builds beside the specs of the stack
    - ``cache_only``: Spack builds nothing, and all packages come from the site's build caches
    - ``own``: below the user's own data directory, which comes before the site's
    - ``link``: files of its own, or hard links into the cache of wheels
    - ``device``: for the processors or the GPUs of the site, if that is not what its default partition has
    - ``verify``: on this machine, in a job or not at all; ``partition``, ``account``, ``qos``, ``reservation``,
      ``time`` (limit in seconds, or ``"00:10:00"``) are that job's
    - ``progress`` gets a line for each step

    Raises the error of the only stack, or ``BuildFailed`` after all others are installed. After an interrupt the same
    call goes on from where it was.
    """
    from hidl_cli.launch.placement import Asked

    limit = time_limit(time)
    follower = Lines(progress or nobody)
    arranged = arrange(
        stacks,
        site=site,
        prefix=absolute(prefix),
        own=own,
        locked=locked,
        offline=offline,
        packages=packages,
        requirements=[str(file) for file in requirements],
        name=name,
        sources=[f"{key}={file}" for key, file in (sources or {}).items()],
        provider=provider,
        spack=absolute(spack),
        specs=specs,
        mirror=absolute(mirror),
        jobs=jobs,
        cache_only=cache_only,
        link=link,
        device=device,
        verify=verify,
        job=Asked(partition=partition, account=account, qos=qos, reservation=reservation, time_limit=limit),
        keep=True,
        say=follower.say,
    )
    results = list(arranged.carry_out(follower))
    failed = [(result.stack, result.error) for result in results if result.error is not None]
    if failed and len(results) == 1:
        raise failed[0][1]
    if failed:
        lines = [f"  {stack}: {first_line(error)}" for stack, error in failed]
        raise BuildFailed(
            "\n".join([f"{len(failed)} of {len(results)} stacks failed", *lines]),
            hint=f"install the first alone: install({failed[0][0]!r})",
        )
    return [
        Installed(result.stack, result.installation.prefix, result.action, result.installation.manifest)
        for result in results
        if result.installation is not None
    ]


def with_specs(stack: Stack, specs: Sequence[str], *, by_spack: bool) -> Stack:
    """Return the stack with further specs of Spack's; ``UsageError`` if Spack does not install it."""
    if not specs:
        return stack
    if not by_spack or stack.spack is None:
        raise UsageError("--spec requires the provider spack", hint="--provider spack, or --with PACKAGE for wheels")
    return stack.model_copy(update={"spack": stack.spack.model_copy(update={"specs": [*stack.spack.specs, *specs]})})


def provider_name(word: str | None) -> ProviderName | None:
    """Return ``word``; ``UsageError`` if it is not a provider."""
    from hidl_cli.site.schema import PROVIDERS

    if word is not None and word not in PROVIDERS:
        raise UsageError(f"unknown provider {word!r}", hint=f"known providers: {', '.join(PROVIDERS)}")
    return word


def first_line(error: HidlError) -> str:
    """What failed, with the first reason that is given below it."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    return ": ".join(lines[:2])


class Lines:
    """Passes each line and the title of each step on."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell

    def say(self, text: str) -> None:
        self._tell(text)

    @contextmanager
    def step(self, title: str, log: Path | None = None) -> Iterator[None]:
        self._tell(title)
        yield


def nobody(_: str) -> None:
    """Tell nobody."""


def _path(word: str | None) -> Path | None:
    return Path(word).expanduser().absolute() if word else None


def derive_stack(
    site: Site, stacks: Sequence[str], words: Sequence[str], files: Sequence[str], name: str | None
) -> Derived | None:
    """Return the stack that ``--as`` names; None if neither it nor requirements are given.

    Raises ``UsageError`` unless exactly one stack, a name and at least one requirement are given.
    """
    if name is None and not words and not files:
        return None
    if name is None:
        raise UsageError("--with and -r make a stack of your own, which needs a name", hint="--as NAME")
    if not words and not files:
        raise UsageError("--as names a stack with packages of your own", hint="--with PACKAGE, or -r FILE")
    if len(stacks) != 1:
        raise UsageError(
            "a stack of your own is based on exactly one stack", hint=f"hidl install pytorch --with PACKAGE --as {name}"
        )
    from hidl_cli.quoting import sh_line
    from hidl_cli.stack.derived import derive
    from hidl_cli.stack.target import accelerator_of

    given = [word for one in words for word in ("--with", one)] + [word for one in files for word in ("-r", one)]
    return derive(
        stacks[0],
        name,
        words,
        [Path(file).expanduser() for file in files],
        accelerator=accelerator_of(site.node_of_stacks()),
        command=sh_line(["hidl", "install", stacks[0], *given, "--as", name]),
    )


def _linked(site: Site, link: str | None) -> Site:
    """The site with this way of filling prefixes; ``UsageError`` for a word that names none."""
    if link is None:
        return site
    if link not in ("copy", "hard"):
        raise UsageError(f"invalid value for --link: {link!r}", hint="copy or hard")
    return site.with_install(link=link)


def for_device(site: Site, device: str | None) -> Site:
    """Return the site with stacks for this device; ``UsageError`` if it has no such nodes, or for another word."""
    if device is None:
        return site
    if device not in ("cpu", "gpu"):
        raise UsageError(f"invalid value for --device: {device!r}", hint="cpu or gpu")
    chosen = site.with_install(device=device)
    if device == "gpu" and not chosen.node_of_stacks().gpus:
        raise UsageError(
            f"--device gpu: no partition of site {site.name} that is open to all is known to have nodes with GPUs",
            hint="another --site, or `gpus` of the node types in the site's file",
        )
    return chosen


def _verification(site: Site, asked: str | None) -> str:
    """Where to verify: as asked, else as the site says; ``UsageError`` for a word that names no place."""
    from hidl_cli.stack.verify import verification_place

    if asked not in (None, "here", "job", "skip"):
        raise UsageError(f"invalid value for --verify: {asked!r}", hint="here, job or skip")
    return asked or verification_place(site)


def verifier_for(site: Site, where: str, progress: Progress, job: Asked | None = None) -> Verifier:
    """Return the verifier of ``here``, ``job`` or ``skip``; ``job``: the options of the job that verifies."""
    from hidl_cli.stack.verify import Here, Skipped

    if where == "job":
        from hidl_cli.launch.placement import Asked
        from hidl_cli.runs.verifying import JobVerification

        return JobVerification(site, job or Asked(), progress.say)
    return Skipped(progress) if where == "skip" else Here(progress)


def _of_the_site(site: Site) -> Sequence[str]:
    """What is installed where nothing is named; ``InvalidInput`` for a stack of the site's file that is not known."""
    from hidl_cli.inputs.overlay import list_all

    if site.stacks is None:
        from hidl_cli.validate.settings import of_checks

        return of_checks()
    unknown = set(site.stacks) - {entry.name for entry in list_all("stack")}
    if unknown:
        raise InvalidInput(
            f"site {site.name}: unknown stacks in `stacks`: {', '.join(sorted(unknown))}", hint="hidl stack list"
        )
    return site.stacks


def _sources(words: Sequence[str], builds: Sequence[str]) -> dict[str, Path]:
    """Read ``NAME=FILE`` words; ``UsageError`` for a name that none of the stacks builds."""
    found = {}
    for word in words:
        name, equals, file = word.partition("=")
        if not equals or not file or name not in builds:
            known = ", ".join(dict.fromkeys(builds)) or "these stacks build nothing from source"
            raise UsageError(f"--source {word!r} is not understood", hint=f"--source NAME=FILE, NAME one of: {known}")
        found[name] = Path(file).expanduser().absolute()
    return found
