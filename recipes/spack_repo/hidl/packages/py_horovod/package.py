import os

from spack.package import conflicts, depends_on, license, maintainers, patch, requires, variant, version
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.python import PythonPackage
from spack_repo.hidl.smoke import run_ranks

#: The patches that every provider of hidl applies (recipes/patches), seen from this package.
_PATCHES = "../../../../patches/horovod/0.28.1"

#: Rank 0 has 0 and rank 1 has 1: their sum is 1 on both.
_SUMS = {
    "pytorch": "import torch, horovod.torch as hvd; hvd.init(); "
    "total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum); assert float(total[0]) == 1.0, total",
    "tensorflow": "import tensorflow as tf, horovod.tensorflow as hvd; hvd.init(); "
    "total = hvd.allreduce(tf.constant([float(hvd.rank())]), op=hvd.Sum); assert float(total[0]) == 1.0, total",
}


class PyHorovod(PythonPackage, CudaPackage):
    """Horovod averages gradients over MPI or Gloo, for PyTorch, TensorFlow and Keras. With patches for PyTorch 2,
    TensorFlow 2.16 and later, and Keras 3, under which the plain 0.28.1 does not build, or trains without averaging.

    Elastic mode is off: CVE-2024-10190 lets anybody who reaches its port run code, and no release fixes it."""

    homepage = "https://github.com/horovod/horovod"
    pypi = "horovod/horovod-0.28.1.tar.gz"

    maintainers("hidl-developers")
    license("Apache-2.0")

    version("0.28.1", sha256="92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0")

    variant(
        "frameworks",
        default="pytorch",
        values=("pytorch", "tensorflow", "keras"),
        multi=True,
        description="What to build for; keras comes with tensorflow",
    )
    variant(
        "controllers",
        default="mpi,gloo",
        values=("mpi", "gloo"),
        multi=True,
        description="What coordinates the ranks, and sums what lies in the hosts' memory",
    )
    variant(
        "gpu_operations",
        default="mpi",
        values=("mpi", "nccl"),
        when="+cuda",
        description="What sums what lies in the GPUs' memory; mpi wants a library that reads it, such as MVAPICH2-GDR",
    )

    requires("frameworks=tensorflow", when="frameworks=keras", msg="Horovod's Keras is that of TensorFlow")
    requires("controllers=mpi", when="gpu_operations=mpi", msg="Horovod's operations over MPI need its controller")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs' compute capabilities, such as cuda_arch=70")

    # The order of their names is that of the list in hidl's own builds; each is written against those before it.
    for _name in sorted(os.listdir(os.path.join(os.path.dirname(__file__), _PATCHES))):
        patch(f"{_PATCHES}/{_name}", level=1, when="@0.28.1")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.18:", type="build")
    depends_on("gmake", type="build")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@:80", type="build")
    depends_on("py-packaging", type=("build", "run"))
    depends_on("py-cloudpickle", type=("build", "run"))
    depends_on("py-psutil", type=("build", "run"))
    depends_on("py-pyyaml", type=("build", "run"))

    depends_on("mpi", when="controllers=mpi")
    depends_on("nccl@2:", when="gpu_operations=nccl")

    depends_on("py-torch@2.1:", type=("build", "link", "run"), when="frameworks=pytorch")
    depends_on("py-cffi@1.4:", type=("build", "run"), when="frameworks=pytorch")
    depends_on("py-tensorflow@2.16:", type=("build", "link", "run"), when="frameworks=tensorflow")
    depends_on("py-keras@3:", type=("build", "run"), when="frameworks=keras")
    for _framework, _package in (("pytorch", "py-torch"), ("tensorflow", "py-tensorflow")):
        depends_on(f"{_package}~cuda", when=f"~cuda frameworks={_framework}")
        depends_on(f"{_package}+cuda", when=f"+cuda frameworks={_framework}")
    for _arch in CudaPackage.cuda_arch_values:
        depends_on(f"py-torch cuda_arch={_arch}", when=f"+cuda frameworks=pytorch cuda_arch={_arch}")
        depends_on(f"py-tensorflow cuda_arch={_arch}", when=f"+cuda frameworks=tensorflow cuda_arch={_arch}")
        depends_on(f"nccl cuda_arch={_arch}", when=f"gpu_operations=nccl cuda_arch={_arch}")

    @property
    def import_modules(self):
        """What must be importable after the installation, by the frameworks that were chosen."""
        chosen = {"pytorch": "horovod.torch", "tensorflow": "horovod.tensorflow", "keras": "horovod.keras"}
        return ["horovod", *(module for name, module in chosen.items() if self.spec.satisfies("frameworks=" + name))]

    def setup_build_environment(self, env):
        """Horovod's own switches (its docs/install.rst): everything is said, nothing is left to what it finds."""
        spec = self.spec
        asked = {"PYTORCH": "frameworks=pytorch", "TENSORFLOW": "frameworks=tensorflow"}
        asked.update({"MPI": "controllers=mpi", "GLOO": "controllers=gloo"})
        for name, condition in asked.items():
            env.set("HOROVOD_{}_{}".format("WITH" if spec.satisfies(condition) else "WITHOUT", name), "1")
        env.set("HOROVOD_WITHOUT_MXNET", "1")
        env.set("HOROVOD_WITHOUT_NVTX", "1")
        env.set("HOROVOD_CMAKE", spec["cmake"].command.path)
        env.set("MAKEFLAGS", f"-j{self.module.make_jobs}")
        if spec.satisfies("+cuda"):
            self._set_cuda(env)

    def _set_cuda(self, env):
        spec = self.spec
        env.set("HOROVOD_GPU", "CUDA")
        env.set("HOROVOD_CUDA_HOME", spec["cuda"].prefix)
        env.set("HOROVOD_BUILD_CUDA_CC_LIST", ",".join(spec.variants["cuda_arch"].value))
        env.set("HOROVOD_GPU_OPERATIONS", spec.variants["gpu_operations"].value.upper())
        if spec.satisfies("gpu_operations=nccl"):
            env.set("HOROVOD_NCCL_HOME", spec["nccl"].prefix)

    def test_check_build(self):
        """what it was built with"""
        said = self.module.which(self.prefix.bin.horovodrun)("--check-build", output=str.split)
        for name in ("mpi", "gloo"):
            if self.spec.satisfies("controllers=" + name):
                assert "[X] {}".format("MPI" if name == "mpi" else "Gloo") in said, said

    def test_two_ranks(self):
        """sum over 2 ranks with each framework"""
        for framework, program in _SUMS.items():
            if self.spec.satisfies(f"frameworks={framework} controllers=mpi"):
                run_ranks(self.spec["mpi"], self.spec["python"].command.path, "-c", program)
