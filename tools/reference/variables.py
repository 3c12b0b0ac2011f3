"""The pages of MPI libraries' run-time variables, out of the catalogue: a heading for each, so that search finds it."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.mpi import Family
from hidl_cli.tuning.catalogue import Variable, all_variables, format_expectation, patterns

from .markdown import code, plain, table

_GROUPS: dict[str, tuple[str, tuple[Family, ...]]] = {
    "mvapich2": ("MVAPICH2 and MVAPICH2-GDR", ("mvapich2", "mvapich2-gdr")),
    "mvapich": ("MVAPICH 3, 4 and MVAPICH-Plus", ("mvapich", "mvapich-plus")),
    "mpich": ("MPICH and Cray MPICH", ("mpich", "cray-mpich")),
}
_HEAD = """\
# Variables of MPI libraries

What the libraries read from the environment of their ranks: `--tune NAME=VALUE` (alias `--mv2`) sets one for a run,
`tuning` in the file of a site, a stack or a workload sets it for many. A variable that the chosen library does not read
is an error. `hidl tuning list WORD` and `hidl tuning explain NAME` tell the same as these pages, and what corresponds
on other libraries; [how to tune](../../how-to/tune-mpi.md). {count} entries, one for each variable and group of
libraries that treat it alike:

"""
_OTHERS = """\
# Other libraries

Of these, what is known is the prefix: any value is taken as it is, for the libraries that are named.

"""
_BY_NAME = " (The name, spelled out: nobody has said what it does.)"


def pages() -> dict[str, str]:
    """The index, a page for each group of families, and one for what is known by its prefix."""
    known = all_variables()
    made = {word: [each for each in known if _is_read(each, group[1])] for word, group in _GROUPS.items()}
    rows = [(f"[{_GROUPS[word][0]}]({word}.md)", str(len(found))) for word, found in made.items()]
    rows.append(("[Others](others.md)", f"{len(patterns())} prefixes"))
    index = _HEAD.format(count=f"{len(known):,}") + table(("library", "variables"), rows)
    prefixes = [(code(f"{one.prefix}*"), ", ".join(one.families), plain(one.meaning)) for one in patterns()]
    return {
        "reference/tuning/index.md": index,
        "reference/tuning/others.md": _OTHERS + table(("variables", "read by", "are"), prefixes),
        **{f"reference/tuning/{word}.md": "".join(_page(word, found)) for word, found in made.items()},
    }


def _is_read(variable: Variable, families: tuple[Family, ...]) -> bool:
    return any(variable.reader(family) for family in families)


def _page(word: str, found: list[Variable]) -> Iterator[str]:
    title, families = _GROUPS[word]
    yield f"---\nhide: [toc]\n---\n\n# {title}\n\n{len(found)} variables, by name. [All libraries](index.md)\n\n"
    for variable in sorted(found, key=lambda each: (each.name, [str(reader) for reader in each.readers])):
        yield _entry(variable, families)


def _entry(variable: Variable, families: tuple[Family, ...]) -> str:
    default = f"default {code(variable.default)}" if variable.default else "default unknown, or the library's choice"
    # Who reads it needs no saying where all of the page do, in every version.
    some = [str(reader) for reader in variable.readers]
    read = "" if tuple(some) == families else f"; read by {', '.join(some)}"
    also = f" Also {', '.join(map(code, variable.also))}." if variable.also else ""
    meaning = plain(variable.meaning) + (_BY_NAME if variable.meaning_from == "name" else "")
    takes = f"*Takes {plain(format_expectation(variable))}; {default}{read}.*{also}"
    return f"### {code(variable.name)}\n\n{meaning}  \n{takes}\n\n"
