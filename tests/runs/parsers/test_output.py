"""Output in pieces: whole lines, whatever the program prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.runs.parsers import patterns
from hidl_cli.runs.parsers.patterns import last_lines, pieces


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "output.txt"


def text_of(file: Path) -> bytes:
    return b"\n".join(piece.text for piece in pieces(file))


@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        (b"a\r\nb", b"a\n\nb"),
        (b" 1/9 [1.0it/s]\r 2/9 [2.0it/s]\n", b" 1/9 [1.0it/s]\n 2/9 [2.0it/s]"),
        (b"\x1b[1;32mloss\x1b[0m 1\x1b[K\n", b"loss 1"),
        (b"\x1b]0;title\x07rate 3\n", b"rate 3"),
        (b"\x1b]0;title\x1b\\rate 3\n", b"rate 3"),
        (b"\x1b]0;not ended\nrate 3\n", b"\x1b]0;not ended\nrate 3"),
        (b"ra\0te\0 3\n", b"rate 3"),
        (b"", b""),
    ],
)
def test_control_characters_do_not_hide_the_text(file: Path, printed: bytes, seen: bytes) -> None:
    file.write_bytes(printed)
    assert text_of(file) == seen


@given(lines=st.lists(st.binary(max_size=50).map(lambda line: line.translate(None, b"\n\r\b\f\v\0\x1b")), max_size=30))
def test_lines_of_a_small_file_are_kept(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    file = tmp_path_factory.mktemp("output") / "x"
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    assert text_of(file) == b"\n".join(lines)


@given(before=st.lists(st.sampled_from([b"\x1b", b"\x1b[", b"\x1b]", b"\\", b"\x07", b"0;", b"x", b"\r", b"\0"])))
def test_no_control_sequence_hides_the_next_line(tmp_path_factory: pytest.TempPathFactory, before: list[bytes]) -> None:
    file = tmp_path_factory.mktemp("output") / "x"
    file.write_bytes(b"".join(before) + b"\nrate 3\n")
    assert text_of(file).split(b"\n")[-1] == b"rate 3"


def test_a_line_of_any_length_comes_in_bounded_pieces(file: Path) -> None:
    with file.open("wb") as out:
        for _ in range(50):
            out.write(b"x" * 1_000_000)
    assert max(len(piece.text) for piece in pieces(file)) <= 3 * patterns.BLOCK
    searched = sum(min(piece.stop, len(piece.text)) - piece.start for piece in pieces(file))
    assert searched == 50_000_000


def test_the_last_lines_are_printable_and_clipped(file: Path) -> None:
    file.write_bytes(b"first\n" + b"\x1b[31mred\x1b[0m\x07\n\n" + b"y" * 500 + b"\nend")
    assert last_lines(file, 3, width=10) == ["red?", "yyyyyyyyyy...", "end"]
    assert last_lines(file.with_name("missing")) == []
    file.write_bytes(b"y" * 100_000)
    assert last_lines(file) == ["(the last line has more than 64 KiB)"]
    file.write_bytes(b"")
    assert last_lines(file) == []


def test_the_last_lines_contain_no_part_of_a_secret(file: Path) -> None:
    """Lines are shortened after secrets are hidden, and the first 64 KiB may begin within a line."""
    file.write_text("token=L4stLines9xK2f5\nsent L4stLines9xK2f5 to server\n")
    assert last_lines(file, width=12) == ["token=***", "sent *** to ..."]
    file.write_text(f"connect --token C0tWithin9xK2f5\n{'step ' * 13_105}\nend\n")
    assert last_lines(file, width=20)[0] == "step step step step ..."
