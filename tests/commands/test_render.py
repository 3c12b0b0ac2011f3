"""What commands print: data as it is for programs, and without control characters for a terminal."""

from __future__ import annotations

import io
import json

import pytest

from hidl_cli.commands.render import emit_json, write

#: What clears a terminal, in seven bits and in eight, and what lets text run backwards.
HOSTILE = "echo \x1b[2J \x9b2J \u202etxt.exe\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_obeys_nothing_that_is_data(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    write(HOSTILE)
    emit_json("hidl.test/1", text=HOSTILE)
    shown = terminal.getvalue()
    assert shown.startswith(r"echo \x1b[2J \x9b2J \u202etxt.exe" + "\n")
    assert shown.replace("\n", "").isprintable()


def test_a_program_gets_every_byte(capsys: pytest.CaptureFixture[str]) -> None:
    write(HOSTILE)
    assert capsys.readouterr().out == HOSTILE
    emit_json("hidl.test/1", text=HOSTILE)
    assert json.loads(capsys.readouterr().out) == {"schema": "hidl.test/1", "text": HOSTILE}
