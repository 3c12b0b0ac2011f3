"""The command `hyparflow`: plan a training, measure a model's costs, simulate a cluster."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from hyparflow.errors import HyparflowError, PlanError
from hyparflow.planning.network import NETWORKS
from hyparflow.schedules import NAMES

OK, REFUSED = 0, 3  # argparse exits with 2 for an invalid command line


def run(arguments: Sequence[str]) -> int:
    """Run a command line; return 0, or 3 for a request that cannot be fulfilled (argparse exits with 2)."""
    options = _parser().parse_args(arguments)
    try:
        options.function(options)
    except PlanError as error:
        for finding in error.findings:
            print(f"hyparflow: {finding}", file=sys.stderr)
        return REFUSED
    except (HyparflowError, OSError) as error:
        print(f"hyparflow: {error}", file=sys.stderr)
        return REFUSED
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hyparflow", description="Data-, model- and hybrid-parallel training of Keras models over MPI."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _plan_options(commands.add_parser("plan", help="plan a training: stages, schedule and predicted times"))
    _costs_options(commands.add_parser("costs", help="measure a model's costs, and write them to a file for simulate"))
    _simulate_options(commands.add_parser("simulate", help="estimate step time and efficiency on a cluster"))
    return parser


def _plan_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(function=_plan)
    parser.add_argument(
        "model", metavar="MODEL", help="a .keras file, or module:function (file.py:function) that builds one"
    )
    parser.add_argument(
        "--batch-size", type=int, default=256, metavar="N", help="samples per step, over all replicas (default: 256)"
    )
    _pipeline_options(parser)
    parser.add_argument(
        "--replicas", type=int, default=1, metavar="R", help="copies of the model that share a batch (default: 1)"
    )
    parser.add_argument(
        "--recompute",
        choices=("auto", "always", "never"),
        default="auto",
        help="recompute activations in the backward pass (default: auto)",
    )
    parser.add_argument("--begin", metavar="LAYER,...", help="layers at which the stages begin (default: the best cut)")
    parser.add_argument(
        "--costs", choices=("auto", "measured", "estimated"), default="auto", help="source of the costs (default: auto)"
    )
    parser.add_argument(
        "--refine",
        type=int,
        metavar="N",
        help="compile and time the stages and cut the model again N times (default: 1, or 0 with estimated costs)",
    )
    parser.add_argument(
        "--memory-limit", type=_bytes, metavar="SIZE", help="memory limit of a rank, for example 900M or 2G"
    )
    parser.add_argument("--draw", metavar="FILE", help="write the timeline as an SVG picture")
    parser.add_argument("--save", metavar="FILE", help="write the plan as JSON")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def _pipeline_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, required=True, metavar="P", help="ranks that share one model")
    parser.add_argument(
        "--micro-batches",
        type=_count_or_auto,
        default="auto",
        metavar="M",
        help="micro-batches of a replica's step (default: auto)",
    )
    parser.add_argument("--schedule", choices=NAMES, default="1f1b", help="pipeline schedule (default: 1f1b)")
    parser.add_argument(
        "--chunks", type=int, default=1, metavar="V", help="stages per partition, with interleaved only (default: 1)"
    )


def _costs_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(function=_costs)
    parser.add_argument("model", metavar="MODEL", help="a .keras file, or module:function that builds one")
    parser.add_argument(
        "--costs", choices=("measured", "estimated"), default="measured", help="source of the costs (default: measured)"
    )
    parser.add_argument(
        "--origin", default="", metavar="TEXT", help="where the costs were measured, recorded in the file"
    )
    parser.add_argument("--save", required=True, metavar="FILE", help="file to write")


def _simulate_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(function=_simulate)
    parser.add_argument("model", metavar="MODEL", help="resnet<depth>v1 or v2, vgg<depth>, or a file of costs")
    _pipeline_options(parser)
    parser.add_argument("--nodes", type=_counts, required=True, metavar="N,...", help="nodes of the cluster")
    parser.add_argument(
        "--ranks-per-node", type=int, metavar="K", help="ranks per node (default: number of partitions)"
    )
    parser.add_argument(
        "--replica-batch", type=int, default=256, metavar="N", help="samples per step of a replica (default: 256)"
    )
    parser.add_argument(
        "--network",
        choices=sorted(NETWORKS),
        default="infiniband-hdr100",
        help="network of the cluster (default: infiniband-hdr100)",
    )
    parser.add_argument(
        "--core-speed",
        type=float,
        default=1.0,
        metavar="X",
        help="core speed relative to the measured core (default: 1)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def _plan(options: argparse.Namespace) -> None:
    from hyparflow.planning.planner import plan

    planned = plan(
        _model(options.model),
        partitions=options.partitions,
        replicas=options.replicas,
        batch_size=options.batch_size,
        micro_batches=options.micro_batches,
        schedule=options.schedule,
        chunks=options.chunks,
        recompute="auto" if options.recompute == "auto" else options.recompute == "always",
        assignment=options.begin.split(",") if options.begin else "auto",
        costs=options.costs,
        memory_limit=options.memory_limit,
        refinements=int(options.costs != "estimated") if options.refine is None else options.refine,
    )
    if options.save:
        planned.save(options.save)
    if options.draw:
        planned.draw(options.draw)
    if options.json:
        print(planned.to_json())
    else:
        from rich.console import Console

        Console().print(planned.table())


def _costs(options: argparse.Namespace) -> None:
    from hyparflow.graph.calls import graph_of
    from hyparflow.planning.costs import estimated
    from hyparflow.planning.measure import LARGEST, measured
    from hyparflow.simulate.library import dump

    model = _model(options.model)
    graph = graph_of(model)
    costs = estimated(graph) if options.costs == "estimated" else measured(model, graph, (1, LARGEST))
    Path(options.save).write_text(dump(graph, costs, options.origin), encoding="utf-8")


def _simulate(options: argparse.Namespace) -> None:
    from hyparflow.simulate.scaling import estimate

    estimates = [
        estimate(
            options.model,
            partitions=options.partitions,
            nodes=nodes,
            ranks_per_node=options.ranks_per_node or options.partitions,
            replica_batch=options.replica_batch,
            micro_batches=options.micro_batches,
            schedule=options.schedule,
            chunks=options.chunks,
            network=options.network,
            core_speed=options.core_speed,
        )
        for nodes in options.nodes
    ]
    if options.json:
        print(
            json.dumps({"schema": "hyparflow.simulation/1", "estimates": [asdict(one) for one in estimates]}, indent=1)
        )
    else:
        _show(options, estimates)


def _show(options: argparse.Namespace, estimates: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from hyparflow.planning.tables import duration

    table = Table(title=f"{options.model}, {options.partitions} partitions, {options.schedule}, {options.network}")
    for title in ("nodes", "replicas", "batch", "step", "samples/s", "speedup", "efficiency", "bubble", "slow nodes"):
        table.add_column(title, justify="right")
    for one in estimates:
        table.add_row(
            str(one.nodes),
            str(one.replicas),
            str(one.batch_size),
            duration(one.step_seconds),
            f"{one.samples_per_second:.4g}",
            f"{one.speedup:.1f}",
            f"{one.efficiency:.1%}",
            f"{one.bubble:.0%}",
            duration(one.straggler_seconds),
        )
    Console().print(table)


def _model(text: str) -> Any:
    """Load a model from a file, or call the function that builds it.

    Raises:
        PlanError: There is no such model.
    """
    place, colon, name = text.rpartition(":")
    if text.endswith((".keras", ".h5")):
        return _saved(text)
    if not colon:
        raise PlanError(f"{text} is neither a .keras file nor module:function")
    function = getattr(_module(place), name, None)
    if not callable(function):
        raise PlanError(f"{place} has no function {name}")
    return function()


def _saved(path: str) -> Any:
    if not Path(path).is_file():
        raise PlanError(f"there is no file {path}")
    if path.endswith(".keras") and not is_zipfile(path):  # Keras would report that such a file does not exist
        raise PlanError(f"{path} is not a model that Keras saved, or is incomplete")
    import keras

    try:
        return keras.saving.load_model(path)
    except Exception as error:  # Keras raises any exception of its parts
        reason = str(error).rpartition("Exception encountered: ")[2].partition(" Full object config: ")[0]
        raise PlanError(f"Keras cannot load {path}: {reason}") from error


def _module(place: str) -> Any:
    import importlib
    import importlib.util

    if place.endswith(".py"):
        specification = importlib.util.spec_from_file_location(Path(place).stem, place)
        if not Path(place).is_file() or specification is None or specification.loader is None:
            raise PlanError(f"there is no file {place}")
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise PlanError(f"there is no module {place}: {error}") from error


def _count_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _bytes(text: str) -> int:
    factors = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
    unit = text[-1:].lower()
    return int(float(text[:-1]) * factors[unit]) if unit in factors else int(text)


def main() -> int:
    """Run the command `hyparflow` and return its exit code."""

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
