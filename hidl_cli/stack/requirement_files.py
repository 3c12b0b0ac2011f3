"""Requirements files of pip: read with the files that they name, every error with its file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.errors import InvalidInput, Mark, Problem
from hidl_cli.redaction import redact
from hidl_cli.stack import requirement
from hidl_cli.stack.requirement import OF_A_WHEEL, Unusable

_BYTES = 4 * 2**20  # a file that is larger is no list of requirements
_COMMENT = re.compile(r"(^|\s+)#.*$")
_OPTION = re.compile(r"(?P<name>--[a-z-]+|-[a-zA-Z])(?:\s*=\s*|\s+|(?<=^-[a-zA-Z])|$)(?P<value>.*)")

_INCLUDES = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
#: What hidl does anyway: it locks with hashes, and installs wheels alone.
_GRANTED = ("--require-hashes", "--prefer-binary", "--only-binary")
_SOURCES = (
    "-i", "--index-url", "--pypi-url", "--extra-index-url", "-f", "--find-links", "--no-index", "--trusted-host",
)  # fmt: skip
_REFUSED = {
    **dict.fromkeys(("-e", "--editable"), ("an editable installation cannot be locked", OF_A_WHEEL)),
    **dict.fromkeys(
        _SOURCES,
        (
            "{name} is not read from requirements files",
            "pip's settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, pip.conf) or `wheels` of the site",
        ),
    ),
    "--pre": ("--pre is unsupported", "a specifier that includes the pre-release, such as name>=2.0rc1"),
    "--no-binary": ("--no-binary is unsupported: stacks are installed from wheels", OF_A_WHEEL),
}


@dataclass(frozen=True)
class Asked:
    """One requirement as a stack keeps it, and who asks for it: a file with its line, or ``--with``."""

    text: str
    by: str
    is_constraint: bool = False


#: Checks a requirement further; raises ``Unusable``.
Check = Callable[[str], None]


def read(words: Sequence[str], files: Sequence[Path], check: Check) -> tuple[Asked, ...]:
    """Return the requirements of ``--with`` and of files; ``InvalidInput`` with every problem of all of them."""
    reader = _Reader(check)
    for word in words:
        reader.take(word, f"--with {word!r}", None)
    for file in files:
        reader.read(file, constraints=False, named_in=None)
    if reader.problems:
        count = len(reader.problems)
        raise InvalidInput(f"{count} invalid requirement{'s' if count > 1 else ''}", problems=reader.problems)
    return tuple(dict.fromkeys(reader.asked))


class _Reader:
    def __init__(self, check: Check) -> None:
        self.check = check
        self.asked: list[Asked] = []
        self.problems: list[Problem] = []
        self._read: set[tuple[Path, bool]] = set()

    def take(self, text: str, by: str, mark: Mark | None, *, constraint: bool = False) -> None:
        """Add one requirement or its problem."""
        try:
            parsed = requirement.parse(" ".join(text.split()))
            if constraint and "[" in requirement.bare(parsed).partition(";")[0]:
                raise Unusable("a constraint has no extras", "name and versions")
            if not constraint:
                self.check(parsed)
        except Unusable as error:
            where = "" if mark else f"{redact(by)}: "
            self.problems.append(Problem(f"{where}{error.message}", error.expected, mark=mark))
        else:
            self.asked.append(Asked(parsed, by, constraint))

    def read(self, file: Path, *, constraints: bool, named_in: Mark | None) -> None:
        """Add what a file holds; a file that was read before is skipped."""
        place = (file.resolve(), constraints)
        if place in self._read:
            return
        self._read.add(place)
        try:
            text = _text(file)
        except Unusable as error:
            self.problems.append(Problem(error.message, error.expected, mark=named_in))
            return
        for number, line in _logical_lines(text):
            mark = Mark(file, number, 1, max(1, len(line)), redact(line))
            if line.startswith("-"):
                self._option(line, file, mark, constraints=constraints)
            else:
                self.take(line, f"{file}:{number}", mark, constraint=constraints)

    def _option(self, line: str, file: Path, mark: Mark, *, constraints: bool) -> None:
        found = _OPTION.fullmatch(line)
        name = found["name"] if found else line.split(maxsplit=1)[0]
        value = found["value"].strip().strip("\"'") if found else ""
        if name in _INCLUDES and value:
            if "://" in value:
                self.problems.append(Problem(f"{name} names a URL", "a file on this machine", mark=mark))
                return
            self.read(file.parent / value, constraints=constraints or _INCLUDES[name], named_in=mark)
        elif name not in _GRANTED:
            message, expected = _REFUSED.get(name, ("unsupported option {name}", "a requirement, -r FILE or -c FILE"))
            self.problems.append(Problem(message.format(name=name), expected, mark=mark))


def _text(file: Path) -> str:
    """Return the file's text; ``Unusable`` if it cannot be read or is no requirements file."""
    if file.suffix in (".toml", ".yaml", ".yml", ".lock", ".cfg", ".py"):
        raise Unusable(
            f"{file} is not a requirements file",
            "such as requirements.txt; from a pyproject.toml: uv pip compile pyproject.toml -o requirements.txt",
        )
    try:
        with file.open("rb") as opened:
            content = opened.read(_BYTES + 1)
        if len(content) > _BYTES or b"\0" in content:
            raise Unusable(f"{file} is not a requirements file", f"text of at most {_BYTES >> 20} MiB")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise Unusable(f"{file}: {error.strerror}", "a requirements file") from None
    except UnicodeDecodeError:
        raise Unusable(f"{file} is not UTF-8", "a requirements file in UTF-8") from None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines that hold something, with the number of their first line: continued ones joined, no comments."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        begun = begun if parts else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            parts.append(line[:-1])
            continue
        whole = _COMMENT.sub("", " ".join([*parts, line])).strip()
        parts = []
        if whole:
            yield begun, whole
    if rest := _COMMENT.sub("", " ".join(parts)).strip():
        yield begun, rest
