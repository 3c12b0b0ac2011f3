"""Truncated singular value decomposition: ``python -m hidl_workloads.ml.tsvd --components=8 --solver=randomized``.

Each rank has its own rows of X; all find the first right singular vectors V and the singular values.
``covariance``: eigenvectors of ``X'X``, one allreduce; what cuML's TSVD does over several GPUs.
``randomized``: X times a few random vectors, made orthogonal by TSQR, some power iterations (Halko, Martinsson and
Tropp 2011, SIAM Review 53, 217-288): less work for few of many components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from hidl_workloads.ml import program, streams, tsqr
from hidl_workloads.ml.blocks import share, split
from hidl_workloads.ml.devices import Device
from hidl_workloads.ml.program import ProgramReport, main, one, timed, verify
from hidl_workloads.ml.streams import Array, Stream
from hidl_workloads.parameters import Tsvd as Parameters
from hidl_workloads.refusal import Refused, agree


@dataclass(frozen=True)
class Decomposition:
    """``vectors`` (components, columns) and ``values`` (components,), falling; on the host, equal on all ranks."""

    vectors: Array
    values: Array


def run(communicator: MPI.Comm, device: Device, parameters: Parameters) -> ProgramReport:
    """Decompose as often as there are steps, and check the vectors: orthonormal, and singular ones of X."""
    total = parameters.points * (communicator.size if parameters.per_rank else 1)
    if parameters.components > min(total, parameters.columns):
        raise Refused(
            f"{parameters.components} components of a matrix of {total} x {parameters.columns}: choose no more than "
            "the smaller of the two"
        )
    rows = share(total, communicator.size, communicator.rank)
    matrix = streams.normal(parameters.seed, Stream.FEATURES, rows, range(parameters.columns))
    basis, _ = np.linalg.qr(
        streams.normal(parameters.seed, Stream.BASIS, range(parameters.columns), range(parameters.columns))
    )
    matrix = device.array(matrix * parameters.decay ** np.arange(parameters.columns) @ basis)
    solve = {"covariance": by_covariance, "randomized": by_random_vectors}[parameters.solver]
    found, seconds = timed(communicator, device, parameters, lambda: solve(communicator, device, matrix, parameters))
    residual, explained = check(communicator, device, matrix, found, parameters)
    return ProgramReport(
        metrics=[
            *program.time_and_rate("solve_time", seconds, total, "row_rate", "rows/s"),
            one("residual", residual, "relative"),
            one("explained", explained, "share"),
        ],
        summary=f"{parameters.components} components of {total:,} x {parameters.columns} by {parameters.solver}: "
        f"{explained:.4%} of the squares, residual {residual:.2g}, {total / np.median(seconds):,.0f} rows/s",
        checksum=program.checksum(device, found.vectors, found.values),
        arrays={"components": found.vectors, "singular_values": found.values},
    )


def by_covariance(communicator: MPI.Comm, device: Device, matrix: Array, parameters: Parameters) -> Decomposition:
    """The eigenvectors of ``X'X``, by LAPACK on rank 0. Squares lose singular values below 1e-8 of the largest."""
    products = device.xp.zeros((matrix.shape[1], matrix.shape[1]))
    for part in split(range(len(matrix)), parameters.block):
        rows = matrix[part.start : part.stop]
        products += rows.T @ rows
    device.allreduce(communicator, products)
    squares, vectors = np.linalg.eigh(device.host(products))
    first = slice(None, -parameters.components - 1, -1)
    return _shared(communicator, vectors.T[first], np.sqrt(np.maximum(squares[first], 0)))


def by_random_vectors(communicator: MPI.Comm, device: Device, matrix: Array, parameters: Parameters) -> Decomposition:
    """Subspace iteration from random vectors, made orthogonal before each product with X and its transpose."""
    xp, columns = device.xp, matrix.shape[1]
    width = min(parameters.components + parameters.oversampling, columns)
    space = device.array(streams.normal(parameters.seed, Stream.PROBE, range(columns), range(width)))
    for _ in range(parameters.power_iterations):
        space, _ = xp.linalg.qr(space)
        space = xp.ascontiguousarray(matrix.T @ (matrix @ space))
        device.allreduce(communicator, space)
    space, _ = xp.linalg.qr(space)
    image = matrix @ space
    upper = tsqr.triangle(communicator, device, image, parameters.block)
    space = xp.ascontiguousarray(matrix.T @ image)
    device.allreduce(communicator, space)
    # image = Q upper = (Q left) * sizes * right, so the rows of (Q left)'X are right * space', divided by the sizes.
    _, sizes, right = np.linalg.svd(device.host(upper))
    filled = int((sizes > sizes[0] * width * np.finfo(float).eps).sum())
    few = f"the matrix has only {filled} nonzero component(s), not {parameters.components}: choose fewer"
    agree(communicator, few if filled < parameters.components else None)
    projected = right[:filled] @ device.host(space).T / sizes[:filled, None]
    _, values, vectors = np.linalg.svd(projected, full_matrices=False)
    return _shared(communicator, vectors[: parameters.components], values[: parameters.components])


def _shared(communicator: MPI.Comm, vectors: Array, values: Array) -> Decomposition:
    """Rank 0's, whatever other processors would round to; the largest element of each vector is positive."""
    largest = np.abs(vectors).argmax(axis=1)
    signs = np.where(vectors[np.arange(len(vectors)), largest] < 0, -1.0, 1.0)
    vectors, values = np.ascontiguousarray(vectors * signs[:, None]), np.ascontiguousarray(values)
    communicator.Bcast(vectors)
    communicator.Bcast(values)
    return Decomposition(vectors, values)


def check(
    communicator: MPI.Comm, device: Device, matrix: Array, found: Decomposition, parameters: Parameters
) -> tuple[float, float]:
    """The largest ``|X'(X v) - s**2 v| / s1**2``, and the share of the squares of X that the components explain.

    Raises ``Refused`` on all ranks where that is more than the limit, or the vectors are not orthonormal.
    """
    xp, vectors = device.xp, device.array(found.vectors)
    image = matrix @ vectors.T
    squares = xp.full((1, len(vectors)), (matrix**2).sum())
    back = xp.concatenate((matrix.T @ image, (image**2).sum(axis=0)[None, :], squares))
    device.allreduce(communicator, back)
    *products, explained, all_squares = device.host(back)
    largest = float(found.values[0]) ** 2
    residuals = np.linalg.norm(np.array(products) - found.vectors.T * found.values**2, axis=0)
    residual = float(residuals.max() / largest) if largest else 0.0
    unity = float(np.abs(found.vectors @ found.vectors.T - np.eye(len(found.vectors))).max())
    verify(communicator, "the vectors' deviation from orthonormality", unity, 1e-10)
    limit = 1e-12 * parameters.columns if parameters.solver == "covariance" else parameters.residual_limit
    verify(communicator, "the largest relative difference between X'X v and s**2 v", residual, limit)
    return residual, float(explained.sum() / all_squares[0]) if all_squares[0] else 0.0


if __name__ == "__main__":
    main("tsvd", Parameters, run)
