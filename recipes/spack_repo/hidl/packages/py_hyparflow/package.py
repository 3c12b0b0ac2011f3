from spack.package import depends_on, license, maintainers, variant, version
from spack_repo.hidl.own_source import OwnPackage
from spack_repo.hidl.smoke import run_ranks
from spack_repo.hidl.source_tree import OwnSource

_SOURCE = OwnSource("libs/hyparflow", version_file="hyparflow/__init__.py")

#: What it stands on: Keras on its backend and both ranks in one world.
_PROGRAM = "import hyparflow; from mpi4py import MPI; assert MPI.COMM_WORLD.size == 2, MPI.COMM_WORLD.size"


class PyHyparflow(OwnPackage):
    """HyPar-Flow: data-, model- and hybrid-parallel training of any Keras model over MPI."""

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
    depends_on("py-keras@3.6: backend=tensorflow", type=("build", "run"))
    depends_on("py-tensorflow@2.18:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-rich@13.7:", type=("build", "run"))

    def test_two_ranks(self):
        """both ranks import it"""
        run_ranks(self.spec["mpi"], self.spec["python"].command.path, "-c", _PROGRAM)
