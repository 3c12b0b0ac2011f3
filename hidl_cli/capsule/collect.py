"""Make the capsule of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hidl_cli.analysis.measures import instant
from hidl_cli.capsule.capsule import OF_THE_RUN, Capsule, Hidden, Input, parse
from hidl_cli.capsule.locks import read_lock
from hidl_cli.capsule.replay import unpacked
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, InvalidInput, MissingPrecondition
from hidl_cli.inputs.load import examine, valid
from hidl_cli.inputs.overlay import at_path
from hidl_cli.plan.input_files import input_files, is_unchanged
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.record.run import Run
from hidl_cli.redaction import Secrets, shown
from hidl_cli.site.checks import RULES
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack.builds.sources import sha256
from hidl_cli.stack.load import load_stack
from hidl_cli.stack.lock import Locked
from hidl_cli.stack.schema import Stack

#: Bytes of a log that a capsule keeps: the last.
LOG_BYTES = 256 << 10


def capsule_of(run: Run) -> Capsule:
    """Return the capsule of a run that was measured, without secrets, for it is given to others.

    ``MissingPrecondition`` if it was not, or its lock is gone.
    """
    plan = plan_of(run)
    if run.document("metrics") is None:
        raise MissingPrecondition(
            f"run {run.id} has no metrics: it has not ended well, or was not judged yet", hint=f"hidl status {run.id}"
        )
    if plan.user_environment is not None:
        raise MissingPrecondition(
            f"run {run.id} used the environment {plan.user_environment.directory}, which no lock describes",
            hint="a run in a stack can be repeated by its lock: hidl install STACK --with PACKAGE --as NAME",
        )
    lock, text = _lock(run, plan)
    secrets = Secrets(named=True)
    members = _members(run, plan, secrets)
    content = text.decode(errors="surrogateescape")
    if secrets.hide(content) != content:
        raise MissingPrecondition(
            f"the lock {lock.filename} of run {run.id} holds a secret, and its hash protects every byte of it",
            hint="take users and passwords out of the stack's URLs, install it again, and run it again",
        )
    members["lock.txt"] = text
    inputs = tuple(replace(each, path=secrets.hide(each.path, "inputs")) for each in _inputs(run, plan))
    capsule = Capsule(
        run=plan.run,
        hidl=plan.hidl,
        stack=plan.stack,
        lock_name=lock.filename,
        packages={package.name: package.version for package in lock.packages},
        inputs=inputs,
        members=members,
        hidden=tuple(Hidden(name, tuple(places)) for name, places in secrets.places.items()),
    )
    _read_back(capsule)
    return capsule


def _members(run: Run, plan: Plan, secrets: Secrets) -> dict[str, bytes]:
    """Return the files of the capsule but for its lock, without secrets."""
    documents: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name in OF_THE_RUN:
        data = _read(run.directory / name)
        if data is None:
            continue
        if name.endswith(".json"):
            documents[f"run/{name}"] = run.document(name.removesuffix(".json"))
        else:
            texts[f"run/{name}"] = data.decode(errors="surrogateescape")
    for name, load in (("stack", load_stack), ("site", load_site)):
        documents[f"{name}.yaml"] = run.document(name) or _today(load(getattr(plan, name)))
    secrets.learn(*documents.values())
    for text in texts.values():
        secrets.learn_output(text)
    members = {name: _dump(name, secrets.hide_document(each, f"{name}: ")) for name, each in documents.items()}
    for name, text in texts.items():
        clean = secrets.hide(text, name)
        # A program may print a secret that only the user's environment tells to be one.
        members[name] = (shown(clean) if name.endswith(".log") else clean).encode(errors="surrogateescape")
    return members


def keeps_sources(run: Run) -> bool:
    """Does the run keep its site and its stack's recipe? Those of hidl 0.1 do not: their capsules hold today's."""
    return run.document("stack") is not None


def _today(model: Stack | Site) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"extends"})


def _dump(name: str, document: Any) -> bytes:
    if name.endswith(".yaml"):
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
    return f"{json.dumps(document, indent=2, ensure_ascii=False)}\n".encode()


def _read_back(capsule: Capsule) -> None:
    """Read the capsule as a replay does; ``HidlError`` if a replay could not."""
    try:
        with unpacked(parse(capsule.to_bytes())) as original:
            site = original.file(f"{original.plan.site}.yaml")
            write_text(site, capsule.text("site.yaml"))
            valid(examine(RULES, at_path("site", site)))
            for name in capsule.members:
                if name.endswith(".json"):
                    original.run.document(Path(name).stem)
    except InvalidInput as error:
        raise HidlError(
            "\n".join(
                [f"the capsule cannot be read back: {error.message}", *(each.message for each in error.problems)]
            ),
            hint="a hidden word may be part of a name, see `hidl run --dry-run`; please report it otherwise",
        ) from error


def _lock(run: Run, plan: Plan) -> tuple[Locked, bytes]:
    """Return the lock that the run's stack was installed from, with its text."""
    found = installation.at(Path(plan.prefix))
    files = [Path(plan.prefix, "lock.txt")]
    if found is not None:
        files.append(Path(found.manifest["lock"]["file"]))
    for file in files:
        try:
            data = file.read_bytes()
            lock = read_lock(file)
        except (OSError, HidlError):
            continue
        if lock.digest == plan.lock:
            return lock, data
    raise MissingPrecondition(
        f"the lock {plan.lock[:12]} of run {run.id} is gone: {' and '.join(map(str, files))} do not hold it",
        hint=f"hidl install {plan.stack}, and run it again",
    )


def _inputs(run: Run, plan: Plan) -> Iterator[Input]:
    """Yield the input files as they were when the run was submitted.

    ``modified``: the file is another one now; its hash is then that of the run's, or "" if it was not recorded.
    """
    recorded = (run.document("inputs") or {}).get("files")
    if recorded is None:  # a run of hidl 0.1: a replaced file keeps its mtime, but its ctime is that of the change
        planned = instant(plan.created).timestamp()
        for file in input_files(plan):
            status = file.stat()
            modified = max(status.st_mtime, status.st_ctime) > planned
            yield Input(str(file), status.st_size, "" if modified else sha256(file), modified)
        return
    for path, known in recorded.items():
        unchanged = is_unchanged(Path(path), known)
        digest = known.get("sha256") or (sha256(Path(path)) if unchanged else "")
        yield Input(path, known["size"], digest, not unchanged)


def _read(file: Path) -> bytes | None:
    """Return a document of the run, of a log the end; None if it does not exist."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    return data[-LOG_BYTES:] if file.suffix == ".log" else data
