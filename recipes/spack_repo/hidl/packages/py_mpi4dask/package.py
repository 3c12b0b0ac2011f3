from spack.package import depends_on, license, maintainers, variant, version
from spack_repo.hidl.own_source import OwnPackage
from spack_repo.hidl.smoke import run_ranks
from spack_repo.hidl.source_tree import OwnSource

_SOURCE = OwnSource("libs/mpi4dask", version_file="mpi4dask/__init__.py")

#: Scheduler, client and worker: a task goes out and its result comes back, by MPI.
_PROGRAM = """
import mpi4dask

mpi4dask.initialize()

from distributed import Client

with Client() as client:
    assert client.scheduler.address.startswith("mpi://"), client.scheduler.address
    assert client.submit(bytes, 10_000_000).result() == bytes(10_000_000)
assert mpi4dask.counters.mpi_bytes_received > 10_000_000, mpi4dask.counters.mpi_bytes_received
"""


class PyMpi4dask(OwnPackage):
    """The protocol mpi:// for Dask's distributed: its data over MPI, distributed itself unmodified."""

    homepage = "https://mvapich.cse.ohio-state.edu"
    own_source = _SOURCE

    maintainers("hidl-developers")
    license("BSD-3-Clause")

    version(_SOURCE.version)
    variant("source", default=_SOURCE.digest, values=(_SOURCE.digest,), description="SHA-256 of the source files")

    depends_on("py-hatchling@1.26:", type="build")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("mpi")
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-dask@2025.1:", type=("build", "run"))
    depends_on("py-distributed@2025.1:", type=("build", "run"))
    depends_on("py-dask-mpi@2022.4:", type=("build", "run"))
    depends_on("py-msgpack@1.1.0:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))

    def test_three_ranks(self):
        """a scheduler, a worker and a client, one rank each, over mpi://"""
        run_ranks(self.spec["mpi"], self.spec["python"].command.path, "-c", _PROGRAM, number=3)
