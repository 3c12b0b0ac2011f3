from spack.package import conflicts, depends_on, license, maintainers, variant, version
from spack_repo.hidl.mvapich2_binary import Mvapich2Binary


class Mvapich2x(Mvapich2Binary):
    """MVAPICH2-X: MPI 3.1 and PGAS models over one runtime, with XPMEM, UMR, ODP, DC, Core-Direct and SHARP, from the
    Ohio State University. Binaries only, as tarballs or as RPMs (variant rpm)."""

    url = "http://mvapich.cse.ohio-state.edu/download/mvapich/spack-mirror/mvapich2x/mvapich2x-2.3.tar.gz"

    maintainers("hidl-developers")
    license("LicenseRef-MVAPICH2-X")  # what OSU's download page says; the source is not given

    version("2.3", sha256="fc47070e2e9fac09b97022be2320200d732a0a4a820a2b51532b88f8ded14536", preferred=True)
    version("2.3rc3", sha256="85a9f1ea1a837d487e356f021ef6f3a4661ad270a0c5f54777b362ee4d45166f")

    variant(
        "process_managers",
        default="mpirun",
        values=("slurm", "mpirun", "pbs"),
        description="How ranks are started; mpirun is mpirun_rsh and Hydra",
    )
    variant(
        "feature",
        default="basic",
        values=("basic", "basic-xpmem", "advanced", "advanced-xpmem"),
        description="OSU's sets of features",
    )

    depends_on("xpmem", when="rpm=none feature=basic-xpmem")
    depends_on("xpmem", when="rpm=none feature=advanced-xpmem")

    conflicts("pmi_version=pmi4pmix", msg="pmi4pmix is jsrun's, which MVAPICH2-X does not know")

    @property
    def rpm_folder(self):
        """Where OSU keeps the RPMs for this version and distribution."""
        distribution = self.spec.variants["distribution"].value
        return f"{self.homepage}/download/mvapich/mv2x/{self.version}/{distribution}"

    @property
    def rpm_name(self):
        """mvapich2-x-advanced-xpmem-mofed5.0-gnu9.2.0-2.3rc3-1.el7.x86_64.rpm and its like.

        The SHA-256 of this one is d47617bc39056b567509b32d7ebf5d9497aad2b2fd9e1001cd9013fdf15e728c
        (Azure/azhpc-images).
        """
        spec = self.spec
        manager = spec.variants["process_managers"].value
        parts = [spec.variants["feature"].value, spec.variants["distribution"].value, self.compiler_label]
        parts += [manager] * (manager != "mpirun")
        return "mvapich2-x-{}-{}-1.{}.{}.rpm".format(
            "-".join(parts), self.version, self.enterprise_linux, spec.target.family
        )

    def feature_arguments(self):
        """configure's, for the features and the network."""
        spec = self.spec
        arguments = [
            "--enable-ucr",
            "--enable-mcast",
            "--enable-hybrid",
            "--enable-mpit-tool",
            "--enable-mpit-pvars=mv2",
        ]
        if spec.variants["distribution"].value.startswith("ifs"):
            arguments.append("--with-device=ch3:psm")
        else:
            arguments += ["--with-device=ch3:mrail", "--with-rdma=gen2"]
        if spec.variants["feature"].value.startswith("advanced"):
            arguments += ["--with-core-direct", "--enable-dc", "--enable-umr"]
        if "xpmem" in spec:
            arguments.append("--with-xpmem={}".format(spec["xpmem"].prefix))
        return arguments
