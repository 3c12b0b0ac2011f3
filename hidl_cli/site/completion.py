"""A site completed by its own machine: what its file leaves open is asked, shown and kept when stacks are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli.errors import InvalidInput

if TYPE_CHECKING:
    from hidl_cli.site.answers import Answer, Asked, Entry
    from hidl_cli.site.keeping import Record
    from hidl_cli.site.probes.host import Host
    from hidl_cli.site.schema import ProviderName, Site


@dataclass(frozen=True)
class Completed:
    """The site with what was learned; ``file``: where it is kept, None where it is not."""

    site: Site
    answers: tuple[Answer, ...] = ()
    remarks: tuple[str, ...] = ()
    host: str | None = None
    file: Path | None = None

    def to_json(self) -> list[dict[str, Any]]:
        """The answers as part of a JSON document."""
        kept = None if self.file is None else str(self.file)
        return [
            {
                "path": ".".join(answer.path),
                "value": answer.value,
                "source": answer.source,
                "host": self.host,
                "kept": kept,
            }
            for answer in self.answers
        ]


def complete(
    site: Site, provider: ProviderName | None, *, keep: bool, say: Callable[[str], object], host: Host | None = None
) -> Completed:
    """Ask this machine for what the file of ``site`` leaves open: MPI libraries; for Spack compilers and externals too.

    ``provider``: who installs; None: as the site says.

    Nothing is asked where nothing is open and no modulefile has changed, where the site takes everything from this
    machine anyway (``spack: {detect: true}``), and where its ``match`` says that this machine is another. ``keep``:
    write what was learned to the user's own file of the site. ``say`` is told each answer, and what gave none.
    Raises ``InvalidInput`` with every answer that contradicts the file.
    """
    if site.spack.detect:
        return Completed(site)
    # 60 ms, which sites that take everything from their machine need not spend
    from hidl_cli.site import keeping
    from hidl_cli.site.answers import ask, changed, entries  # the same
    from hidl_cli.site.detect import conditions_of  # the same
    from hidl_cli.site.probes.host import ThisHost  # the same

    record = keeping.read_record(site.name)
    software = (provider or site.install.provider) == "spack"
    due = [entry for one in entries(site, software=software) if (entry := _due(site, one, record))]
    if not due:
        return Completed(site)
    host = host or ThisHost()
    stranger = next((one for one in conditions_of(site, host) if not one.holds), None)
    if stranger is not None:
        say(f"site {site.name} does not set its MPI libraries, and this machine is not part of it: {stranger.reason}")
        return Completed(site)
    asked = ask(site, due, host)
    if asked.contradictions:
        count = len(asked.contradictions)
        raise InvalidInput(
            f"the file of site {site.name} contradicts this machine in {count} {'entry' if count == 1 else 'entries'}",
            problems=asked.contradictions,
            hint=f"correct your own site file: {keeping.user_file(site.name)}",
        )
    answers = tuple(answer for answer in asked.answers if _value(site, answer.path) != answer.value)
    remarks = tuple(dict.fromkeys(asked.remarks))
    done = Completed(changed(site, answers), answers, remarks, host.hostname)
    for remark in remarks:
        say(f"unknown: {remark}")
    for line in summary(done.site, answers):
        say(line)
    return _kept(done, asked, record, say) if keep else done


def summary(site: Site, answers: Sequence[Answer]) -> list[str]:
    """What was learned, a line for each entry: ``mvapich2: 2.3.7, in /opt/mvapich2, asked of ...``."""
    by_entry: dict[tuple[str, ...], list[Answer]] = {}
    for answer in answers:
        if len(answer.path) > 1:
            by_entry.setdefault(answer.path[:-1], []).append(answer)
    lines = []
    for path, learned in by_entry.items():
        entry = getattr(site, path[0])[path[1]]
        kind = {"compilers": "compiler ", "externals": "external "}.get(path[0], "")
        words = [f"{kind}{path[1]}: {entry.version or 'version unknown'}"]
        words += [f"in {entry.prefix}"] if entry.prefix else []
        lines.append(", ".join([*words, f"read from this machine ({learned[0].source})"]))
    return lines


def _due(site: Site, entry: Entry, record: Record) -> Entry | None:
    """The entry with the keys to ask for: those that are unknown; all that were learned where a module changed."""
    if not record.is_stale(entry.path):
        return entry if entry.unknown else None
    keys = ("version", "prefix", "fortran")
    learned = [key for key in keys if record.learned((*entry.path, key), _value(site, (*entry.path, key)))]
    known = replace(entry, unknown=(*entry.unknown, *learned))
    return known if known.unknown else None


def _value(site: Site, path: tuple[str, ...]) -> Any:
    found: Any = site
    for step in path:
        found = found.get(step) if isinstance(found, dict) else getattr(found, step, None)
    return found


def _kept(done: Completed, asked: Asked, record: Record, say: Callable[[str], object]) -> Completed:
    """The same, kept; where it cannot be, what to add is said, and this installation goes on."""
    from hidl_cli.site import keeping  # as in `complete`

    origin = keeping.Origin(done.host or "", f"{datetime.now(timezone.utc):%Y-%m-%d}")
    name, answers = done.site.name, done.answers
    file = None
    try:
        if answers:
            file = keeping.keep(name, answers, record, origin)
        keeping.write_record(name, record, answers, asked.files)
    except OSError as error:
        say(f"not saved: {error.strerror or error}: {error.filename}")
    if file is not None:
        say(f"saved in {file}")
    elif answers:
        say(f"add this to {keeping.user_file(name)}, which hidl cannot edit safely:")
        say(keeping.lines(answers, origin).rstrip("\n"))
    return replace(done, file=file)
