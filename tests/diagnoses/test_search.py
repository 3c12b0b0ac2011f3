"""Causes in logs of any size and content, and their order."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator

import pytest

from hidl_cli.diagnoses import read_blocks, search
from tests.tiers import deep

KILLED = b"srun: error: node1: task 3: Killed\n"
FULL = b"OSError: [Errno 28] No space left on device\n"
WATCHDOG = b"[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n"
ABORTED = b"application called MPI_Abort(MPI_COMM_WORLD, 1) - process 0\n"
OWN = b"some_program: error: table 3 has no column 7\n"
SLOW = b"distributed.worker.memory - WARNING - Worker is at 89% memory usage. Pausing worker.\n"


class Endless(io.BytesIO):
    """A file of so many chunks, none of which is kept."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self.chunks = chunks

    def read(self, size: int | None = -1, /) -> bytes:
        return next(self.chunks, b"")


def rules(log: bytes) -> list[str]:
    return [cause.finding.rule for cause in search(read_blocks(io.BytesIO(log)))]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (WATCHDOG + KILLED + FULL + SLOW, ["HD170", "HD131", "HD223"]),
        (SLOW + FULL + KILLED + WATCHDOG, ["HD170", "HD131", "HD223"]),
        (WATCHDOG + SLOW, ["HD233", "HD223"]),
        (ABORTED + KILLED, ["HD262", "HD131"]),
        (KILLED + ABORTED, ["HD131", "HD262"]),
        (OWN + WATCHDOG + SLOW, ["HD601", "HD223"]),
        (OWN + FULL, ["HD170"]),
        (OWN + KILLED, ["HD131"]),
        (OWN + ABORTED, ["HD601"]),
        (OWN + ABORTED + KILLED, ["HD262", "HD131"]),
    ],
)
def test_causes_come_before_symptoms_and_consequences_stand_alone(log: bytes, expected: list[str]) -> None:
    assert rules(log) == expected


def test_a_programs_own_words_are_quoted_from_lines_that_nothing_explains() -> None:
    (cause,) = search([b"srun: error: node1: task 0: Exited with exit code 1\n" + OWN + b"other: error: later\n"])
    assert (cause.line, cause.finding.seen) == (2, OWN.decode().strip())
    (cause,) = search([b"epoch 1\nFatal error:\nno such table\n" + ABORTED])
    assert cause.finding.seen == "Fatal error: no such table"


def test_the_first_of_two_causes_comes_first() -> None:
    missing = b"ModuleNotFoundError: No module named 'zarr'\n"
    assert rules(missing + FULL) == ["HD150", "HD170"]
    assert rules(FULL + missing) == ["HD170", "HD150"]


@pytest.mark.parametrize("text", ["error 12", "status=12", "error=12"])
def test_one_cause_in_many_words_is_one_cause(text: str) -> None:
    log = f"NCCL WARN NET/IB : Got completion from peer 10.0.0.2 with {text} opcode=0\n".encode()
    more = b"UCX  ERROR Transport retry count exceeded on mlx5_0:1/IB\ntransport retry counter exceeded\n"
    assert rules(log + more) == ["HD238"]


@pytest.mark.parametrize("before", [b"", b"\n" * 7, b"all is well\n" * 200_000, b"10%\r50%\r100%\r\r\n\r\n"])
def test_the_line_of_a_cause_is_counted_over_blocks(before: bytes) -> None:
    (cause,) = search(read_blocks(io.BytesIO(before + FULL + FULL)))
    assert cause.line == before.count(b"\n") + 1
    assert cause.finding.seen == FULL.decode().strip()


def test_binary_and_escape_sequences_do_not_hide_a_cause() -> None:
    assert rules(b"\x00\xff\xfe\x1b[31mNo space\x1b[0m left on \x1b[1;32mdevice\x1b[0m\x00\n") == ["HD170"]
    assert rules(b"50%|##  |\rsignal 9 (Killed)\n") == ["HD131"]


@pytest.mark.parametrize("place", [0, 1024 * 1024 - 10, 3 * 1024 * 1024 + 7])
def test_a_cause_in_a_line_longer_than_a_block_is_found(place: int) -> None:
    assert rules(b"x" * place + b" No space left on device " + b"y" * (5 * 1024 * 1024)) == ["HD170"]


@pytest.mark.parametrize("chunk", [b"step 17 loss 2.1\n" * 60_000, deep(b"x" * 1024 * 1024)], ids=["lines", "one line"])
def test_memory_is_bounded(chunk: bytes) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield chunk
        yield b"\n" + FULL

    search([])  # compiles the catalogue
    tracemalloc.start()
    (cause,) = search(read_blocks(Endless(chunks())))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cause.finding.rule == "HD170"
    assert peak < 16 * 1024 * 1024


def test_a_harmless_line_does_not_hide_a_later_one() -> None:
    ignored = b"unable to open mca_btl_usnic: libfabric.so.1: cannot open shared object file: No such file (ignored)\n"
    assert rules(ignored) == []
    (cause,) = search(
        [ignored * 3 + b"orted: libfoo.so.1: cannot open shared object file: No such file or directory\n"]
    )
    assert (cause.finding.rule, cause.line) == ("HD152", 4)


@pytest.mark.parametrize(
    ("harmless", "last", "expected"),
    [
        (b"OSError: [Errno 27] File %d too large\n", FULL, "HD170"),
        (b"rank %d: transport ended with error 0\n", b"NET/IB : Got completion with error 12 opcode=0\n", "HD238"),
        (b"%d nonfatal error: counts\n", b"Fatal error:\nno such table\n", "HD601"),
        (b"(ignored) %d: libb.so: cannot open shared object file: No such file (ignored)\n", None, "HD152"),
    ],
)
@pytest.mark.parametrize("count", [1, 99, 100, 101, 20_000])
def test_lines_that_look_like_a_cause_do_not_hide_it(
    harmless: bytes, last: bytes | None, expected: str, count: int
) -> None:
    last = last or b"orted: libfoo.so.1: cannot open shared object file: No such file or directory\n"
    before = b"".join(harmless % number for number in range(count))
    causes = {cause.finding.rule: cause.line for cause in search(read_blocks(io.BytesIO(before + last)))}
    assert causes[expected] == count + 1
