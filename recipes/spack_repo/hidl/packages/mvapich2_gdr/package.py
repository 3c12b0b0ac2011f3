from spack.package import conflicts, depends_on, license, maintainers, requires, variant, version
from spack_repo.hidl.mvapich2_binary import Mvapich2Binary


class Mvapich2Gdr(Mvapich2Binary):
    """MVAPICH2-GDR: MPI 3.1 with GPUDirect RDMA for clusters with NVIDIA or AMD GPUs and InfiniBand, from the Ohio
    State University. Binaries only, as tarballs or as RPMs (variant rpm)."""

    url = "http://mvapich.cse.ohio-state.edu/download/mvapich/spack-mirror/mvapich2-gdr/mvapich2-gdr-2.3.7.tar.gz"

    maintainers("hidl-developers")
    license("LicenseRef-MVAPICH2-GDR")  # what OSU's download page says; the source is not given

    version("2.3.7", sha256="7bf748ed3750aa607382fc96229e256d888824aed758ce364b1ed9429da4779e")
    version("2.3.6", sha256="618408431348164c0824f3a72dc406763f169f7f5400f3cc15dfebf8d7166005")
    version("2.3.5", sha256="bcfe8197875405af0ddbf6462e585efc21668108bec9b481fe53616ad36a98b4")
    version("2.3.4", sha256="ed78101e6bb807e979213006ee5f20ff466369b01f96b6d1cf0c471baf7e35aa")
    version("2.3.3", sha256="9b7b5dd235dbf85099fba3b6f1ccb49bb755923efed66ddc335921f44cb1b8a8")

    variant(
        "process_managers",
        default="mpirun",
        values=("none", "slurm", "mpiexec", "mpirun", "pbs", "jsrun"),
        description="How ranks are started; mpirun is mpirun_rsh and Hydra",
    )
    variant("cuda", default=True, description="GPUs of NVIDIA")
    variant("rocm", default=False, description="GPUs of AMD")
    variant("mcast", default=True, description="InfiniBand's hardware multicast")
    variant("openacc", default=False, description="OpenACC")
    variant("core_direct", default=False, description="Collectives offloaded to the network's adapters")

    depends_on("cuda@9.2.88:", when="+cuda")
    depends_on("hip@3.9.0:", when="+rocm")

    conflicts("+cuda+rocm", msg="MVAPICH2-GDR is made for CUDA or for ROCm, not for both")
    conflicts("~cuda~rocm", msg="MVAPICH2-GDR is made for CUDA or for ROCm; without GPUs, MVAPICH2 does as well")
    conflicts("+rocm", when="@:2.3.4", msg="MVAPICH2-GDR knows ROCm from 2.3.5 on")
    conflicts("+openacc", when="+rocm", msg="MVAPICH2-GDR's OpenACC is that of CUDA")
    requires(
        "pmi_version=pmix",
        "pmi_version=pmi4pmix",
        policy="one_of",
        when="process_managers=jsrun",
        msg="jsrun takes pmix or pmi4pmix",
    )
    for _manager in ("none", "slurm", "mpiexec", "mpirun", "pbs"):
        conflicts("pmi_version=pmi4pmix", when=f"process_managers={_manager}", msg="pmi4pmix is jsrun's")

    @property
    def rpm_folder(self):
        """Where OSU keeps the RPMs for this version and distribution."""
        distribution = self.spec.variants["distribution"].value
        return f"{self.homepage}/download/mvapich/gdr/{self.version}/{distribution}"

    @property
    def rpm_name(self):
        """mvapich2-gdr-cuda11.6.mofed5.5.gnu8.5.0-2.3.7-1.el8.x86_64.rpm and its like; HPC Container Maker has more."""
        spec = self.spec
        manager = spec.variants["process_managers"].value
        toolkit = spec["cuda"] if spec.satisfies("+cuda") else spec["hip"]
        gpu = "{}{}".format("cuda" if spec.satisfies("+cuda") else "rocm", toolkit.version.up_to(2))
        parts = [gpu, spec.variants["distribution"].value, self.compiler_label]
        parts = ["mcast"] * spec.satisfies("+mcast") + parts + [manager] * (manager != "mpirun")
        release = 2 if spec.satisfies("@2.3.3") else 1
        return "mvapich2-gdr-{}-{}-{}.{}.{}.rpm".format(
            ".".join(parts), self.version, release, self.enterprise_linux, spec.target.family
        )

    def feature_arguments(self):
        """configure's, for GPUs and the network."""
        spec = self.spec
        arguments = [] if spec.satisfies("+mcast") else ["--disable-mcast"]
        arguments += ["--with-core-direct"] if spec.satisfies("+core_direct") else []
        arguments += ["--enable-openacc"] if spec.satisfies("+openacc") else []
        if spec.satisfies("+cuda"):
            cuda = "--with-cuda={}".format(spec["cuda"].prefix)
            return [*arguments, "--enable-cuda", cuda, "--disable-cl", "--disable-opencl"]
        return [*arguments, "--enable-rocm", "--enable-hip=basic", "--with-rocm={}".format(spec["hip"].prefix)]
