"""Several stacks in one order: what cannot be installed is left out or fails, and the rest goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hidl_cli.errors import ExitCode, HidlError, UsageError
from hidl_cli.stack.builds import sources
from hidl_cli.stack.install import Action, InstallResult
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.order import Order, Progress


@dataclass(frozen=True)
class Result:
    """What came of one stack: an installation, or the error; ``seconds`` that it took."""

    stack: str
    action: Action | Literal["failed"]
    seconds: float
    installation: Installation | None = None
    error: HidlError | None = None

    def to_json(self) -> dict[str, Any]:
        """As part of a JSON document: the manifest with what was done, or the error."""
        if self.installation is not None:
            return {**self.installation.manifest, "action": self.action}
        assert self.error is not None
        code = int(self.error.exit_code)
        return {"stack": self.stack, "error": self.error.message, "hint": self.error.hint, "exit_code": code}


@dataclass(frozen=True)
class LeftOut:
    """A stack that was not asked for by its name, and needs what only the user can bring."""

    stack: str
    reason: str
    hint: str | None


def with_what_they_need(orders: Sequence[Order]) -> tuple[list[Order], list[LeftOut]]:
    """The orders that can be carried out, and the stacks whose source archive is not here and cannot be fetched."""
    able, left_out = [], []
    for order in orders:
        missing = _missing_source(order)
        if missing is None:
            able.append(order)
        else:
            left_out.append(LeftOut(order.stack.name, missing.message, missing.hint))
    return able, left_out


def _missing_source(order: Order) -> HidlError | None:
    if (order.provider or order.site.install.provider) != "wheels":
        return None
    for build in order.stack.builds:
        brought = build.name in order.sources or sources.newest(build, order.root) is not None
        if build.source.pypi is None and not brought:
            return sources.missing(build, order.root)
    return None


def install_each(
    orders: Sequence[Order], carry_out: Callable[[Order, Progress], InstallResult], progress: Progress
) -> Iterator[Result]:
    """Carry the orders out, one after another; the error of one does not stop the next."""
    for number, order in enumerate(orders, start=1):
        name, began = order.stack.name, time.monotonic()
        if len(orders) > 1:
            progress.say(f"[{number}/{len(orders)}] {name}")
        try:
            outcome = carry_out(order, progress)
        except UsageError:  # it would be said of each
            raise
        except HidlError as error:
            yield Result(name, "failed", time.monotonic() - began, error=error)
        else:
            yield Result(name, outcome.action, time.monotonic() - began, outcome.installation)


def exit_code(results: Sequence[Result]) -> ExitCode:
    """That of the one error, where a single stack was asked for; else 5 where one failed."""
    errors = [result.error for result in results if result.error is not None]
    if not errors:
        return ExitCode.OK
    return errors[0].exit_code if len(results) == 1 else ExitCode.BUILD_FAILED
