"""Classification by the k nearest neighbours, by brute force: ``python -m hidl_workloads.ml.knn --neighbours=5``.

The ranks form a grid: each has a share of the queries and a share of the references, finds the nearest of the ones
among the others, and the ranks that have the same queries merge what they found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from mpi4py import MPI

from hidl_workloads.ml import exact, neighbours, program, streams
from hidl_workloads.ml.blocks import aligned_share, grid, share, split
from hidl_workloads.ml.devices import Device
from hidl_workloads.ml.program import ProgramReport, main, one, timed, verify
from hidl_workloads.ml.streams import Array, Stream
from hidl_workloads.parameters import Knn as Parameters
from hidl_workloads.refusal import Refused

_CHECKED = 16  # number of queries whose neighbours are counted again


@dataclass(frozen=True)
class Part:
    """The part of one rank: queries and references (rows, columns) minus a common mean, and their row numbers.

    ``row`` are the ranks with the same queries. All ranks know all references' classes.
    """

    row: MPI.Comm
    queries: Array
    query_rows: range
    references: Array
    reference_rows: range
    classes: Array


def run(communicator: MPI.Comm, device: Device, parameters: Parameters) -> ProgramReport:
    """Classify the queries as often as there are steps, and count the neighbours of some of them again."""
    if parameters.neighbours > parameters.references:
        raise Refused(f"{parameters.neighbours} neighbours of {parameters.references} reference(s): choose fewer")
    if parameters.per_rank:
        parameters = replace(parameters, queries=parameters.queries * communicator.size)
    shape = grid(communicator.size, parameters.queries, parameters.references)
    part, truth = _part(communicator, device, parameters, shape)
    (rows, distances, found), seconds = timed(
        communicator, device, parameters, lambda: search(device, part, parameters)
    )
    check(communicator, device, part, rows, distances, parameters=parameters)
    own = (rows, neighbours.vote(part.classes[found], parameters.classes))
    predicted = np.empty(parameters.queries, dtype=np.int64)
    for of_rows, labels in communicator.allgather(own):
        predicted[of_rows.start : of_rows.stop] = labels
    part.row.Free()
    accuracy = float((predicted == truth).mean())
    median = float(np.median(seconds))
    rate = parameters.queries / median
    return ProgramReport(
        metrics=[
            *program.time_and_rate("query_time", seconds, parameters.queries, "query_rate", "queries/s"),
            one("distance_rate", rate * parameters.references, "distances/s"),
            one("accuracy", accuracy, "share"),
        ],
        summary=f"{parameters.queries:,} queries among {parameters.references:,} references, {shape[0]} x {shape[1]} "
        f"shares: {accuracy:.1%} right, {rate:,.0f} queries/s",
        checksum=program.checksum(device, predicted),
        arrays={"predicted": predicted},
    )


def _part(communicator: MPI.Comm, device: Device, parameters: Parameters, shape: tuple[int, int]) -> tuple[Part, Array]:
    """This rank's part, and the classes that all queries were made from."""
    across, down = communicator.rank % shape[1], communicator.rank // shape[1]
    query_rows = aligned_share(parameters.queries, parameters.block, shape[0], down)
    reference_rows = aligned_share(parameters.references, parameters.block, shape[1], across)

    def made(stream: Stream, rows: range) -> tuple[Array, Array]:
        return streams.blobs(
            parameters.seed,
            stream,
            rows,
            columns=parameters.columns,
            centers=parameters.classes,
            spread=parameters.spread,
        )

    queries, of_queries = made(Stream.QUERIES, query_rows)
    references, of_references = made(Stream.POINTS, reference_rows)
    # Distances computed from products lose fewer digits without the mean. Each reference is counted once, by the
    # first rank of its column.
    counted = references if down == 0 else references[:0]
    mean = exact.total(communicator, device, device.array(counted), parameters.references) / parameters.references
    truth, classes = np.zeros(parameters.queries, dtype=np.int64), np.zeros(parameters.references, dtype=np.int64)
    if across == 0:
        truth[query_rows.start : query_rows.stop] = of_queries
    if down == 0:
        classes[reference_rows.start : reference_rows.stop] = of_references
    communicator.Allreduce(MPI.IN_PLACE, truth, MPI.SUM)
    communicator.Allreduce(MPI.IN_PLACE, classes, MPI.SUM)
    part = Part(
        communicator.Split(down),
        device.array(queries) - mean,
        query_rows,
        device.array(references) - mean,
        reference_rows,
        classes,
    )
    return part, truth


def search(device: Device, part: Part, parameters: Parameters) -> tuple[range, Array, Array]:
    """Find the neighbours of this rank's queries among its references, and merge them with the others' of its row.

    Returns the rows of the queries that this rank has merged, their neighbours' squared distances, and the
    neighbours' rows: (queries, neighbours) on the host, by distance, then row. Blocks do not depend on the number of
    ranks, so neither does the result. Collective.
    """
    count, xp = parameters.neighbours, device.xp
    distances = np.full((len(part.query_rows), count), np.inf)
    rows = np.full((len(part.query_rows), count), neighbours.NO_ROW)
    squares = (part.references**2).sum(axis=1)
    for of_queries in split(part.query_rows, parameters.block):
        place = slice(of_queries.start - part.query_rows.start, of_queries.stop - part.query_rows.start)
        queries = part.queries[place]
        length = (queries**2).sum(axis=1)[:, None]
        best = device.array(distances[place]), device.array(rows[place])
        for of_references in split(part.reference_rows, parameters.block):
            among = slice(
                of_references.start - part.reference_rows.start, of_references.stop - part.reference_rows.start
            )
            table = queries @ (-2 * part.references[among].T)
            table += squares[among]
            table += length
            near = neighbours.nearest_of_block(xp, table, xp.arange(of_references.start, of_references.stop), count)
            far, where = (xp.concatenate(pair, axis=1) for pair in zip(best, near, strict=True))
            best = neighbours.merge(xp, far, where, count)
        distances[place], rows[place] = (device.host(each) for each in best)
    return _merged(part, distances, rows, count)


def _merged(part: Part, distances: Array, rows: Array, count: int) -> tuple[range, Array, Array]:
    """Exchange what the ranks of a row found, so that each merges a share of the queries: one alltoall for each."""
    shares = [share(len(part.query_rows), part.row.size, rank) for rank in range(part.row.size)]
    own = shares[part.row.rank]
    sent = [len(each) * count for each in shares]

    def joined(values: Array, kind: MPI.Datatype) -> Array:
        received = np.empty((part.row.size, len(own), count), dtype=values.dtype)
        part.row.Alltoallv([values, sent, None, kind], [received, [len(own) * count] * part.row.size, None, kind])
        return received.transpose(1, 0, 2).reshape(len(own), part.row.size * count)

    nearest = neighbours.merge(np, joined(distances, MPI.DOUBLE), joined(rows, MPI.INT64_T), count)
    first = part.query_rows.start
    return range(first + own.start, first + own.stop), *nearest


def check(
    communicator: MPI.Comm, device: Device, part: Part, rows: range, distances: Array, *, parameters: Parameters
) -> None:
    """Count for some queries, by differences, the references that are nearer than the farthest neighbour found.

    There must be fewer than ``neighbours`` of them, and at least so many that are as near: ``Refused`` if not.
    """
    random = streams.generator(parameters.seed, Stream.SAMPLE)
    chosen = np.unique(random.integers(0, parameters.queries, min(_CHECKED, parameters.queries)))
    farthest, probes = np.zeros(len(chosen)), np.zeros((len(chosen), parameters.columns))
    for number_, row in enumerate(chosen):
        if row in rows:
            farthest[number_] = distances[row - rows.start, -1]
            probes[number_] = device.host(part.queries[row - part.query_rows.start])
    communicator.Allreduce(MPI.IN_PLACE, farthest, MPI.SUM)
    communicator.Allreduce(MPI.IN_PLACE, probes, MPI.SUM)
    scale = device.largest(communicator, part.references) + float(np.abs(probes).max())
    slack = 1e-12 * parameters.columns * scale**2
    nearer = np.zeros((2, len(chosen)), dtype=np.int64)
    if communicator.rank < part.row.size:  # the first row of ranks has each reference once
        for number_, probe in enumerate(probes):
            differences = ((part.references - device.array(probe)) ** 2).sum(axis=1)
            nearer[0, number_] = int((differences < farthest[number_] - slack).sum())
            nearer[1, number_] = int((differences <= farthest[number_] + slack).sum())
    communicator.Allreduce(MPI.IN_PLACE, nearer, MPI.SUM)
    wrong = int(((nearer[0] >= parameters.neighbours) | (nearer[1] < parameters.neighbours)).sum())
    verify(communicator, f"the number of {len(chosen)} queries with wrong neighbours", wrong, 0)


if __name__ == "__main__":
    main("knn", Parameters, run)
