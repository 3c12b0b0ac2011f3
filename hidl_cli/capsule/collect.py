"""Make the capsule of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hidl_cli.analysis.measures import instant
from hidl_cli.capsule.capsule import OF_THE_RUN, Capsule, Input
from hidl_cli.capsule.locks import read_lock
from hidl_cli.errors import HidlError, MissingPrecondition
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.record.run import Run
from hidl_cli.redaction import redact
from hidl_cli.site.load import load_site
from hidl_cli.stack import installation
from hidl_cli.stack.builds.sources import sha256
from hidl_cli.stack.load import load_stack
from hidl_cli.stack.lock import Locked

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
    members = {f"run/{name}": data for name in OF_THE_RUN if (data := _read(run.directory / name)) is not None}
    members["stack.yaml"] = _yaml(load_stack(plan.stack).model_dump(mode="json", by_alias=True, exclude_defaults=True))
    members["site.yaml"] = _yaml(load_site(plan.site).model_dump(mode="json", by_alias=True, exclude_defaults=True))
    members = {
        name: redact(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        for name, data in members.items()
    }
    members["lock.txt"] = text
    return Capsule(
        run=plan.run,
        hidl=plan.hidl,
        stack=plan.stack,
        lock_name=lock.filename,
        packages={package.name: package.version for package in lock.packages},
        inputs=tuple(_inputs(plan)),
        members=members,
    )


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


def _inputs(plan: Plan) -> Iterator[Input]:
    """Yield the files that the program's words and parameters name, each once; the stack's own files are no inputs."""
    program = plan.workload.program
    base = Path(program.directory) if program.directory else None
    words = [*(program.command or ()), *(program.arguments or ())]
    words += [str(value) for point in plan.points for value in {**plan.parameters, **point}.values()]
    planned = instant(plan.created)
    seen = set()
    for word in words:
        for text in (word, word.partition("=")[2]):
            file = _file(text, base)
            if file is None or file in seen or file.is_relative_to(plan.prefix):
                continue
            seen.add(file)
            status = file.stat()
            yield Input(str(file), status.st_size, sha256(file), status.st_mtime > planned.timestamp())


def _file(text: str, base: Path | None) -> Path | None:
    """Return the file of that name; None if there is none, or the name is relative and the program has no directory."""
    if not text or "\0" in text or len(text) > 4096:
        return None
    path = Path(text)
    if not path.is_absolute():
        if base is None:
            return None
        path = base / path
    try:
        return path if path.is_file() else None
    except OSError:
        return None


def _read(file: Path) -> bytes | None:
    """Return a document of the run, of a log the end; None if it does not exist."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    return data[-LOG_BYTES:] if file.suffix == ".log" else data


def _yaml(document: dict[str, Any]) -> bytes:
    document.pop("extends", None)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
