"""Complete a site with values detected on its machine when a stack is installed, and save them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli.errors import InvalidInput

if TYPE_CHECKING:
    from hidl_cli.site.discovery import ProbedValue, ProbeEntry, ProbeResults
    from hidl_cli.site.probes.host import Host
    from hidl_cli.site.record import DetectionRecord
    from hidl_cli.site.schema import ProviderName, Site


@dataclass(frozen=True)
class CompletedSite:
    """A site with detected values. ``file`` is the file they were saved to, or None if they were not saved."""

    site: Site
    answers: tuple[ProbedValue, ...] = ()
    remarks: tuple[str, ...] = ()
    host: str | None = None
    file: Path | None = None

    def to_json(self) -> list[dict[str, Any]]:
        """Return the detected values as JSON data."""
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
) -> CompletedSite:
    """Detect values that a site's file leaves open: MPI libraries and, for Spack, compilers and externals.

    Nothing is probed if no value is missing and no modulefile has changed, if the site takes everything from this
    machine anyway (``spack: {detect: true}``), or if its ``match`` does not match this machine. If the site has no
    ``match``, its nodes must have this machine's architecture, and only values from the site's modules are saved.

    Args:
        site: The site to complete.
        provider: Provider for the installation (default: the site's provider).
        keep: Save the detected values in the user's own file for the site.
        say: Called with each line to be shown to the user.
        host: Host to probe (default: this machine).

    Raises ``InvalidInput`` listing all values that contradict the file.
    """
    if site.spack.detect:
        return CompletedSite(site)
    from hidl_cli.site import record as records  # imported only if needed, because the import takes 60 ms
    from hidl_cli.site.detect import conditions_of  # as above
    from hidl_cli.site.discovery import changed, entries, probe  # as above
    from hidl_cli.site.probes.host import ThisHost  # as above

    record = records.read_record(site.name)
    software = (provider or site.install.provider) == "spack"
    due = [entry for one in entries(site, software=software) if (entry := _due(site, one, record))]
    if not due:
        return CompletedSite(site)
    host = host or ThisHost()
    mismatch = next((one.reason for one in conditions_of(site, host) if not one.holds), None) or _foreign(site, host)
    if mismatch:
        say(f"site {site.name} does not set its MPI libraries, and this machine does not match it: {mismatch}")
        return CompletedSite(site)
    results = probe(site, due, host)
    if results.contradictions:
        count = len(results.contradictions)
        raise InvalidInput(
            f"the file of site {site.name} does not match this machine in "
            f"{count} {'entry' if count == 1 else 'entries'}",
            problems=results.contradictions,
            hint=f"correct your own site file: {records.user_file(site.name)}",
        )
    answers = tuple(answer for answer in results.answers if _value(site, answer.path) != answer.value)
    remarks = tuple(dict.fromkeys(results.remarks))
    done = CompletedSite(changed(site, answers), answers, remarks, host.hostname)
    for remark in remarks:
        say(f"unknown: {remark}")
    for line in summary(done.site, answers):
        say(line)
    if not keep:
        return done
    modules = {entry.path for entry in due if entry.modules}
    certain = answers if site.match else tuple(answer for answer in answers if answer.path[:2] in modules)
    for path in dict.fromkeys(answer.path[:2] for answer in answers if answer not in certain):
        say(f"not saved: {'.'.join(path)}, because site {site.name} has no `match` and may describe another machine")
    return replace(_kept(replace(done, answers=certain), results, record, say), answers=answers)


def _foreign(site: Site, host: Host) -> str | None:
    """Return why this machine cannot belong to a site that has no ``match``, or None if it may."""
    here = (host.ask("uname", "-m") or "").strip()
    arch = site.node_type().arch
    if site.match is not None or not here or arch in (None, here):
        return None
    return f"its nodes are {arch}, and this machine is {here}"


def summary(site: Site, answers: Sequence[ProbedValue]) -> list[str]:
    """Summarize detected values, one line per entry."""
    by_entry: dict[tuple[str, ...], list[ProbedValue]] = {}
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


def _due(site: Site, entry: ProbeEntry, record: DetectionRecord) -> ProbeEntry | None:
    """Return the entry with the keys to probe.

    These are the unknown keys and, if a modulefile has changed, the previously detected ones.
    """
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


def _kept(
    done: CompletedSite, results: ProbeResults, record: DetectionRecord, say: Callable[[str], object]
) -> CompletedSite:
    """Save the detected values. If that fails, print the lines to add to the file, and continue."""
    from hidl_cli.site import record as records  # imported only if needed, as in `complete`

    origin = records.Origin(done.host or "", f"{datetime.now(timezone.utc):%Y-%m-%d}")
    name, answers = done.site.name, done.answers
    file = None
    try:
        if answers:
            file = records.keep(name, answers, record, origin)
        records.write_record(name, record, answers, results.files)
    except OSError as error:
        say(f"not saved: {error.strerror or error}: {error.filename}")
    if file is not None:
        say(f"saved in {file}")
    elif answers:
        say(f"add this to {records.user_file(name)}, which hidl cannot edit safely:")
        say(records.lines(answers, origin).rstrip("\n"))
    return replace(done, file=file)
