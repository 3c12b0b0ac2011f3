"""Least squares: ``python -m hidl_workloads.ml.linear_regression --points=200000 --columns=64 --solver=tsqr``.

Each rank has its own points. ``normal``: the normal equations, one allreduce of the products of all columns with each
other. ``tsqr``: QR of the points and targets together, whose factor R holds the whole answer; for data of a condition
number beyond 1e7 or so, where the normal equations have no correct digit left.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from hidl_workloads.ml import program, streams, tsqr
from hidl_workloads.ml.blocks import share, split
from hidl_workloads.ml.devices import Device
from hidl_workloads.ml.program import ProgramReport, main, one, timed, verify
from hidl_workloads.ml.streams import Array, Stream
from hidl_workloads.parameters import LinearRegression as Parameters
from hidl_workloads.refusal import Refused, agree

_GRADIENT = 1e-11  # both solvers leave about 1e-16 if they can solve the problem
_SINGULAR = 0.1  # the largest relative error of a solution with at least one correct digit
_EPSILON = float(np.finfo(float).eps)


def run(communicator: MPI.Comm, device: Device, parameters: Parameters) -> ProgramReport:
    """Solve as often as there are steps, and check that the gradient vanishes at the solution."""
    total = parameters.points * (communicator.size if parameters.per_rank else 1)
    if total <= parameters.columns:
        raise Refused(f"{total} point(s) do not determine {parameters.columns + 1} unknowns: increase points")
    matrix = _matrix(communicator, device, parameters, total)
    solve = {"normal": normal_equations, "tsqr": by_tsqr}[parameters.solver]
    solution, seconds = timed(
        communicator, device, parameters, lambda: solve(communicator, device, matrix, parameters.block)
    )
    gradient, residual = _gradient(communicator, device, matrix, solution)
    verify(communicator, "the relative gradient at the solution", gradient, _GRADIENT)
    return ProgramReport(
        metrics=[
            *program.time_and_rate("solve_time", seconds, total, "point_rate", "points/s"),
            one("gradient", gradient, "relative"),
            one("residual", residual, "root mean square"),
        ],
        summary=f"{total:,} points in {parameters.columns} dimensions by {parameters.solver}: residual {residual:.6g}, "
        f"gradient {gradient:.2g}, {total / np.median(seconds):,.0f} points/s",
        checksum=program.checksum(device, solution),
        arrays={"coefficients": solution[:-1], "intercept": solution[-1]},
    )


def _matrix(communicator: MPI.Comm, device: Device, parameters: Parameters, total: int) -> Array:
    """This rank's (rows, columns + 2): features, ones, and targets, which are linear but for noise."""
    rows, columns, seed = share(total, communicator.size, communicator.rank), parameters.columns, parameters.seed
    features = streams.normal(seed, Stream.FEATURES, rows, range(columns))
    if parameters.condition > 1:
        basis, _ = np.linalg.qr(streams.normal(seed, Stream.BASIS, range(columns), range(columns)))
        features = features @ (basis * np.geomspace(1, 1 / parameters.condition, columns)) @ basis.T
    truth = streams.normal(seed, Stream.COEFFICIENTS, range(columns), range(1))
    noise = streams.normal(seed, Stream.NOISE, rows, range(1))
    targets = features @ truth + 1.0 + parameters.noise * noise
    return device.array(np.hstack((features, np.ones((len(rows), 1)), targets)))


def normal_equations(communicator: MPI.Comm, device: Device, matrix: Array, block: int) -> Array:
    """Solve ``X'X w = X'y`` by Cholesky's method: coefficients and intercept, (columns + 1,), on the host of all.

    Raises ``Refused`` on all ranks where ``X'X`` is singular to working precision.
    """
    products = device.xp.zeros((matrix.shape[1], matrix.shape[1]))
    for part in split(range(len(matrix)), block):
        rows = matrix[part.start : part.stop]
        products += rows.T @ rows
    device.allreduce(communicator, products)
    everyones = device.host(products)

    def solve() -> Array | None:
        try:
            upper = np.linalg.cholesky(everyones[:-1, :-1]).T
        except np.linalg.LinAlgError:
            return None
        if not tsqr.condition(upper) * _EPSILON**0.5 < _SINGULAR:
            return None
        return np.linalg.solve(upper, np.linalg.solve(upper.T, everyones[:-1, -1]))

    return _by_the_first(
        communicator, len(everyones) - 1, solve, "try solver=tsqr, which does not square the condition number"
    )


def by_tsqr(communicator: MPI.Comm, device: Device, matrix: Array, block: int) -> Array:
    """Solve by the QR factorisation of features, ones and targets: coefficients and intercept, as above.

    Raises ``Refused`` on all ranks where the columns depend on each other to working precision.
    """
    upper = device.host(tsqr.triangle(communicator, device, matrix, block))

    def solve() -> Array | None:
        if not tsqr.condition(upper[:-1, :-1]) * _EPSILON < _SINGULAR:
            return None
        return np.linalg.solve(upper[:-1, :-1], upper[:-1, -1])

    return _by_the_first(communicator, len(upper) - 1, solve, "columns are linearly dependent: omit some")


def _by_the_first(communicator: MPI.Comm, length: int, solve: Callable[[], Array | None], hint: str) -> Array:
    """Let rank 0 solve a small system for all, whatever other processors would round to."""
    solution = solve() if communicator.rank == 0 else np.empty(length)
    agree(communicator, f"the condition number is too large for this solver; {hint}" if solution is None else None)
    communicator.Bcast(solution)
    return solution


def _gradient(communicator: MPI.Comm, device: Device, matrix: Array, solution: Array) -> tuple[float, float]:
    """``|X'(Xw - y)|`` relative to ``|X| (|X| |w| + |y|)``, and the root mean square of ``Xw - y``.

    With a backward stable solver, the former is some rounding errors, whatever the condition.
    """
    xp = device.xp
    error = matrix[:, :-1] @ device.array(solution) - matrix[:, -1]
    gradient = matrix[:, :-1].T @ error
    squares = xp.stack([(matrix[:, :-1] ** 2).sum(), (matrix[:, -1] ** 2).sum(), error @ error])
    sums = xp.concatenate((gradient, squares))
    count = communicator.allreduce(len(matrix))
    device.allreduce(communicator, sums)
    *parts, features, targets, errors = device.host(sums)
    scale = features**0.5 * (features**0.5 * float(np.linalg.norm(solution)) + targets**0.5)
    return float(np.linalg.norm(parts) / scale) if scale else 0.0, float((errors / count) ** 0.5)


if __name__ == "__main__":
    main("linear-regression", Parameters, run)
