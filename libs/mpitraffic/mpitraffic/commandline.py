"""The command ``mpitraffic``."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from mpitraffic import __version__, build
from mpitraffic.errors import TrafficError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 1 for an error, 2 for wrong options."""
    options = _parser().parse_args(arguments)
    try:
        print(options.function(options))
    except TrafficError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mpitraffic", description="Record and show the traffic of an MPI program.")
    parser.add_argument("--version", action="version", version=__version__, help="Show the version and exit.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    builder = commands.add_parser("build", help="Build the recorder for an MPI library.")
    builder.add_argument("library", type=Path, help="Shared library to write.")
    builder.add_argument("--mpicc", default="mpicc", help="MPI's compiler wrapper (default: mpicc on PATH).")
    builder.set_defaults(function=_build)

    environment = commands.add_parser("env", help="Print the variables that record a program, for env(1).")
    environment.add_argument("directory", type=Path, help="Directory of the profile, the same for all ranks.")
    environment.add_argument("--mpicc", default="mpicc", help="MPI's compiler wrapper (default: mpicc on PATH).")
    environment.add_argument("--recorder", type=Path, help="Recorder built before.")
    environment.add_argument("--events", type=int, default=0, metavar="NUMBER", help="Events kept per rank.")
    environment.add_argument("--megabytes", type=float, metavar="SIZE", help="Largest file of a rank (default: 16).")
    environment.add_argument(
        "--barrier", action="store_true", help="Measure waiting by a barrier in front of blocking collectives."
    )
    environment.set_defaults(function=_environment)

    shower = commands.add_parser("show", help="Show a profile.")
    shower.add_argument("directory", type=Path, help="Directory of the profile.")
    shower.add_argument("--matrix", action="store_true", help="Show who sent how many bytes to whom.")
    shower.add_argument("--json", action="store_true", help="Print JSON.")
    shower.set_defaults(function=_show)

    exporter = commands.add_parser("export", help="Write a profile in another format.")
    exporter.add_argument("directory", type=Path, help="Directory of the profile.")
    exporter.add_argument("output", type=Path, help="File to write; for OTF2 a directory.")
    exporter.add_argument(
        "--as",
        dest="form",
        choices=("calls", "ranks", "pairs", "trace", "otf2"),
        required=True,
        help="A table (CSV, or Parquet by the name of the file), a trace for Perfetto, or an OTF2 archive.",
    )
    exporter.set_defaults(function=_export)
    return parser


def _build(options: argparse.Namespace) -> str:
    return str(build.build(options.library, options.mpicc))


def _environment(options: argparse.Namespace) -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mpitraffic"
    recorder = options.recorder or build.cached(cache, options.mpicc)
    preloaded = os.environ.get("LD_PRELOAD")
    variables = {
        "LD_PRELOAD": f"{recorder.resolve()}:{preloaded}" if preloaded else str(recorder.resolve()),
        "MPITRAFFIC_DIRECTORY": str(options.directory.resolve()),
        "MPITRAFFIC_EVENTS": str(options.events or ""),
        "MPITRAFFIC_MEGABYTES": str(options.megabytes or ""),
        "MPITRAFFIC_BARRIER": "1" if options.barrier else "",
    }
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items() if value)


def _show(options: argparse.Namespace) -> str:
    from mpitraffic import profile, summary

    loaded = profile.load(options.directory)
    if options.json:
        return json.dumps(profile.as_document(loaded))
    return summary.matrix(loaded) if options.matrix else summary.summary(loaded)


def _export(options: argparse.Namespace) -> str:
    from mpitraffic import export, profile

    if options.form in ("trace", "otf2"):
        write = export.write_trace if options.form == "trace" else export.write_otf2
        return f"{write(options.directory, options.output)} events in {options.output}"
    export.write_table(profile.load(options.directory), options.form, options.output)
    return str(options.output)
