"""Values reach shells letter by letter, or are refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.errors import InvalidInput
from hidl_cli.quoting import comment, sh, sh_line, within_single_quotes

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.lists(TEXT, max_size=4))
def test_a_shell_gives_every_word_back(words: list[str]) -> None:
    script = f"printf '%s\\0' {sh_line(words)}" if words else ":"
    printed = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert printed.split(b"\0")[:-1] == [word.encode() for word in words]


@given(TEXT)
def test_so_does_one_that_gets_its_single_quotes_from_elsewhere(text: str) -> None:
    script = f"printf %s '{within_single_quotes(text)}'"
    assert subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout == text.encode()


@pytest.mark.parametrize("quote", [sh, within_single_quotes])
def test_a_nul_is_refused(quote: Callable[[str], str]) -> None:
    with pytest.raises(InvalidInput, match="NUL"):
        quote("a\0b")


@given(TEXT)
def test_a_comment_never_leaves_its_line(text: str) -> None:
    script = f"# {comment(text)}\necho reached"
    printed = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert (printed.stdout, printed.stderr) == (b"reached\n", b"")
