"""Installation of stacks: resolve the options into orders, one for each stack to install, and carry them out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hidl_cli.errors import BuildFailed, HidlError, InvalidInput, UsageError
from hidl_cli.launch.options import AllocationOptions, InstallOptions
from hidl_cli.plan.options import absolute
from hidl_cli.quoting import sh_line

if TYPE_CHECKING:
    from hidl_cli.site.completion import CompletedSite
    from hidl_cli.site.schema import ProviderName, Site
    from hidl_cli.stack.derivation import Derived
    from hidl_cli.stack.install import Result, SkippedStack
    from hidl_cli.stack.order import Order, Progress
    from hidl_cli.stack.plan import StackSources
    from hidl_cli.stack.references import ReferenceBuilder
    from hidl_cli.stack.schema import Stack
    from hidl_cli.stack.verify import Verifier


@dataclass(frozen=True)
class Installed:
    """An installation; ``action`` is "installed", "switched" or "nothing to do", and ``document`` is its manifest."""

    stack: str
    prefix: Path
    action: str
    document: Mapping[str, Any] = field(repr=False)

    def _repr_html_(self) -> str:
        from hidl_cli.api.execution import facts

        return facts([("stack", self.stack), ("prefix", str(self.prefix)), ("action", self.action)])


@dataclass(frozen=True)
class Arranged:
    """Resolved installation requests, ready to be carried out.

    Attributes:
        left_out: Stacks that are skipped because the user must supply something first.
        completed: The site, completed with facts probed on this machine.
        root: Root directory of the installations.
        verification: Where to verify the installations: ``here``, ``job`` or ``skip``.
        derived: The user's derived stack, if any.
        job: Options for jobs that build or verify.
    """

    orders: Sequence[Order]
    left_out: Sequence[SkippedStack]
    completed: CompletedSite
    root: Path
    verification: str
    derived: Derived | None
    job: AllocationOptions

    def carry_out(self, progress: Progress) -> Iterator[Result]:
        """Install the stacks and yield the result of each."""
        from hidl_cli.stack.install import install, install_each

        verifier = verifier_for(self.completed.site, self.verification, progress, self.job)
        if self.derived:
            from hidl_cli.stack.derivation import settle

            settle(self.derived, self.orders[0], progress)
        yield from install_each(self.orders, partial(install, verifier=verifier), progress)


def arrange(options: InstallOptions, *, keep: bool, say: Callable[[str], object]) -> Arranged:
    """Resolve the options of ``hidl install`` into installation requests.

    ``keep`` saves the facts that are probed on this machine.
    """
    from hidl_cli.mpi import FAMILIES
    from hidl_cli.schedulers.build_allocation import build_job
    from hidl_cli.site import completion
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import install as several
    from hidl_cli.stack import installation
    from hidl_cli.stack.checks import load_stack
    from hidl_cli.stack.order import Order

    chosen = provider_name(options.provider)
    completed = completion.complete(load_site(options.site), chosen, keep=keep, say=say)
    where = for_device(_linked(completed.site, options.link), options.device)
    if options.own and options.prefix:
        raise UsageError("--own and --prefix cannot be combined")
    root = installation.own_root() if options.own else installation.installation_root(where, options.prefix)
    derived = derive_stack(
        where,
        options.stacks,
        options.packages or (),
        [fspath(file) for file in options.requirements or ()],
        options.name,
        mirror=_path(options.mirror),
        offline=options.offline,
        say=say,
    )
    wanted = (
        [derived.stack]
        if derived
        else [load_stack(each) for each in dict.fromkeys(options.stacks or _of_the_site(where))]
    )
    named = [build.name for stack in wanted for build in stack.builds]
    if (chosen or where.install.provider) == "rpm":
        named += [*where.rpms, *where.mpi, *FAMILIES]
    archives = _sources(options.sources or (), named)
    with_spack = (chosen or where.install.provider) == "spack"
    if options.cache_only and not (with_spack and where.spack.build_caches):
        raise UsageError(
            "--cache-only requires the spack provider and a build cache",
            hint=f"add `spack: {{build_caches: {{centre: URL}}}}` to the file of site {where.name}",
        )
    wanted = [with_specs(stack, options.specs or (), by_spack=with_spack) for stack in wanted]
    job = build_job(where, os.environ, options) if with_spack else None
    orders = [
        Order(
            where,
            stack,
            root,
            locked=options.locked,
            offline=options.offline,
            sources=archives,
            provider=chosen,
            spack=_path(options.spack),
            mirror=_path(options.mirror),
            jobs=options.jobs,
            build_job=job,
            cache_only=options.cache_only,
            credentials=derived.credentials if derived else {},
        )
        for stack in wanted
    ]
    verification = _verification(where, options.verify)
    orders, left_out = (orders, []) if options.stacks else several.split_installable(orders)
    return Arranged(orders, left_out, completed, root, verification, derived, options)


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
    """Install stacks (default: the site's stacks), like ``hidl install``. Existing installations are kept.

    - ``packages`` and ``requirements`` (files in pip's format) are added to a single stack, and the result becomes your
      stack ``name``
    - ``locked``: fail unless a lockfile fits; ``offline``: do not use the network; ``sources``: archives for builds, by
      name
    - ``provider``, ``spack`` (its directory), ``mirror``, ``jobs`` (number of parallel compile jobs), ``prefix``:
      default to the site's settings
    - ``specs``: additional specs that Spack builds along with those of the stack
    - ``cache_only``: build nothing with Spack; all packages come from the site's build caches
    - ``own``: install below your data directory, which takes precedence over the site's installations
    - ``link``: copy files, or make hard links into the wheel cache
    - ``device``: install for the site's CPUs or GPUs (default: the hardware of its default partition)
    - ``verify``: verify on this machine, in a job, or not at all; ``partition``, ``account``, ``qos``, ``reservation``
      and ``time`` (limit in seconds, or ``"00:10:00"``) are options for that job
    - ``progress`` is called with a line for each step

    If the only stack fails, its error is raised. If one of several fails, ``BuildFailed`` is raised after all others
    are installed. The same call resumes an interrupted installation.
    """
    follower = Lines(progress or ignore)
    options = InstallOptions(
        stacks=stacks,
        site=site,
        prefix=absolute(prefix),
        own=own,
        locked=locked,
        offline=offline,
        packages=packages,
        requirements=requirements,
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
        partition=partition,
        account=account,
        qos=qos,
        reservation=reservation,
        time=time,
    )
    arranged = arrange(options, keep=True, say=follower.say)
    results = list(arranged.carry_out(follower))
    failed = [(result.stack, result.error) for result in results if result.error is not None]
    if failed and len(results) == 1:
        raise failed[0][1]
    if failed:
        lines = [f"  {stack}: {first_line(error)}" for stack, error in failed]
        raise BuildFailed(
            "\n".join([f"{len(failed)} of {len(results)} stacks failed", *lines]),
            hint=f"install the first one separately: install({failed[0][0]!r})",
        )
    return [
        Installed(result.stack, result.installation.prefix, result.action, result.installation.manifest)
        for result in results
        if result.installation is not None
    ]


def with_specs(stack: Stack, specs: Sequence[str], *, by_spack: bool) -> Stack:
    """Return the stack with additional Spack specs; raises ``UsageError`` if Spack does not install the stack."""
    if not specs:
        return stack
    if not by_spack or stack.spack is None:
        raise UsageError(
            "--spec requires the spack provider", hint="use --provider spack, or --with PACKAGE for wheels"
        )
    return stack.model_copy(update={"spack": stack.spack.model_copy(update={"specs": [*stack.spack.specs, *specs]})})


def provider_name(word: str | None) -> ProviderName | None:
    """Return ``word`` if it is a provider, and raise ``UsageError`` otherwise."""
    from hidl_cli.site.schema import PROVIDERS

    if word is not None and word not in PROVIDERS:
        raise UsageError(f"unknown provider {word!r}", hint=f"known providers: {', '.join(PROVIDERS)}")
    return word


def first_line(error: HidlError) -> str:
    """Return the first line of the error's message, followed by the first reason listed below it."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    return ": ".join(lines[:2])


class Lines:
    """A progress reporter that passes each line and each step's title to a function."""

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report

    def say(self, text: str) -> None:
        self._report(text)

    @contextmanager
    def step(self, title: str, log: Path | None = None) -> Iterator[None]:
        self._report(title)
        yield


def ignore(_: str) -> None:
    """Discard a line of progress."""


def _path(word: str | None) -> Path | None:
    return Path(word).expanduser().absolute() if word else None


def derive_stack(
    site: Site,
    stacks: Sequence[str],
    words: Sequence[str],
    files: Sequence[str],
    name: str | None,
    *,
    mirror: Path | None,
    offline: bool,
    say: Callable[[str], object],
) -> Derived | None:
    """Return the derived stack that ``--as`` names, or None if there are neither packages nor a name.

    Args:
        site: The site.
        stacks: Names of the stacks.
        words: Requirements from the command line.
        files: Requirements files.
        name: Name of the new stack.
        mirror: Directory created by ``hidl stack fetch``, or None.
        offline: Whether to work without the network.
        say: Function that prints a line of progress.

    Raises:
        UsageError: The name or the requirements are missing, or the number of stacks is not one.
    """
    if name is None and not words and not files:
        return None
    if name is None:
        raise UsageError("--with and -r require a name for the derived stack", hint="add --as NAME")
    if not words and not files:
        raise UsageError("--as requires additional packages", hint="add --with PACKAGE or -r FILE")
    if len(stacks) != 1:
        raise UsageError(
            "a derived stack is based on exactly one stack",
            hint=f"for example, run: hidl install pytorch --with PACKAGE --as {name}",
        )
    from hidl_cli.stack.checks import load_stack
    from hidl_cli.stack.derivation import derive
    from hidl_cli.stack.target import accelerator_of, detect

    def make_builder(extra: StackSources) -> ReferenceBuilder:
        from hidl_cli.stack.providers.wheels import WheelInstaller  # uv is not needed if nothing is built

        uv = WheelInstaller.for_site(site, mirror).with_sources(extra, target, offline=offline)
        return uv.reference_builder(target, offline=offline)

    target = detect(site, load_stack(stacks[0]))
    given = [word for one in words for word in ("--with", one)] + [word for one in files for word in ("-r", one)]
    return derive(
        stacks[0],
        name,
        words,
        [Path(file).expanduser() for file in files],
        accelerator=accelerator_of(site.node_of_stacks()),
        command=sh_line(["hidl", "install", stacks[0], *given, "--as", name]),
        make_builder=make_builder,
        say=say,
        markers=target.markers,
    )


def _linked(site: Site, link: str | None) -> Site:
    """Return the site, changed to use this link mode; raises ``UsageError`` if the mode is invalid."""
    if link is None:
        return site
    if link not in ("copy", "hard"):
        raise UsageError(f"invalid --link {link!r}: must be copy or hard")
    return site.with_install(link=link)


def for_device(site: Site, device: str | None) -> Site:
    """Return the site, changed to use stacks for this device; raises ``UsageError`` if the site lacks the device."""
    if device is None:
        return site
    if device not in ("cpu", "gpu"):
        raise UsageError(f"invalid --device {device!r}: must be cpu or gpu")
    chosen = site.with_install(device=device)
    if device == "gpu" and not chosen.node_of_stacks().gpus:
        raise UsageError(
            f"invalid --device gpu: site {site.name} has no open partition that is known to have GPUs",
            hint="choose another --site, or set `gpus` of the node types in the site's file",
        )
    return chosen


def _verification(site: Site, asked: str | None) -> str:
    """Return where to verify, as set by the option or the site; raises ``UsageError`` if the option is invalid."""
    from hidl_cli.stack.verify import verification_place

    if asked not in (None, "here", "job", "skip"):
        raise UsageError(f"invalid --verify {asked!r}: must be here, job or skip")
    return asked or verification_place(site)


def verifier_for(site: Site, where: str, progress: Progress, job: AllocationOptions | None = None) -> Verifier:
    """Return the verifier for ``here``, ``job`` or ``skip``; ``job`` contains the options for verification jobs."""
    from hidl_cli.stack.verify import Here, Skipped

    if where == "job":
        from hidl_cli.runs.verification import JobVerification

        return JobVerification(site, job or AllocationOptions(), progress.say)
    return Skipped(progress) if where == "skip" else Here(progress)


def _of_the_site(site: Site) -> Sequence[str]:
    """Return the default stacks of a site; raises ``InvalidInput`` if its file names an unknown stack."""
    from hidl_cli.inputs.overlay import list_all

    if site.stacks is None:
        from hidl_cli.validate.settings import of_checks

        return of_checks()
    unknown = set(site.stacks) - {entry.name for entry in list_all("stack")}
    if unknown:
        raise InvalidInput(
            f"site {site.name}: unknown stacks in `stacks`: {', '.join(sorted(unknown))}",
            hint="to list the known stacks, run: hidl stack list",
        )
    return site.stacks


def _sources(words: Sequence[str], builds: Sequence[str]) -> dict[str, Path]:
    """Parse ``NAME=FILE``; raises ``UsageError`` for a name that no stack builds."""
    found = {}
    for word in words:
        name, equals, file = word.partition("=")
        if not equals or not file or name not in builds:
            known = ", ".join(dict.fromkeys(builds)) or "none, since these stacks build nothing from source"
            raise UsageError(f"invalid --source {word!r}: expected NAME=FILE", hint=f"known names: {known}")
        found[name] = Path(file).expanduser().absolute()
    return found
