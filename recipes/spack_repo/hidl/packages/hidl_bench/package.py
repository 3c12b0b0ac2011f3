from spack.package import depends_on, license, maintainers, variant, version
from spack_repo.hidl.own_source import OwnPackage
from spack_repo.hidl.smoke import run_ranks
from spack_repo.hidl.source_tree import OwnSource

_SOURCE = OwnSource("hidl_workloads", version_file="__init__.py", beside="../../hidl_workloads")


class HidlBench(OwnPackage):
    """hidl's workloads, the programs that it runs inside jobs: ResNet-50, machine learning over MPI, Dask's
    applications, micro-benchmarks. Each needs what its variant brings; mpi4py and NumPy serve for the others."""

    homepage = "https://mvapich.cse.ohio-state.edu"
    own_source = _SOURCE

    maintainers("hidl-developers")
    license("BSD-3-Clause")

    version(_SOURCE.version)
    variant("source", default=_SOURCE.digest, values=(_SOURCE.digest,), description="SHA-256 of the source files")
    variant("dask", default=False, description="Dask's applications over mpi://")
    variant("horovod", default=False, description="Training with Horovod")
    variant("pytorch", default=False, description="Training with PyTorch")
    variant("tensorflow", default=False, description="Training with TensorFlow")

    depends_on("py-hatchling@1.26:", type="build")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("mpi")
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-mpi4dask", type=("build", "run"), when="+dask")
    depends_on("py-horovod", type=("build", "run"), when="+horovod")
    depends_on("py-torch", type=("build", "run"), when="+pytorch")
    depends_on("py-tensorflow", type=("build", "run"), when="+tensorflow")

    def test_two_ranks(self):
        """what a job's ranks verify first"""
        run_ranks(self.spec["mpi"], self.spec["python"].command.path, "-m", "hidl_workloads.mpi_sanity")
