"""What MVAPICH2-GDR and MVAPICH2-X have in common: OSU gives them as binaries only, in two forms.

- ``rpm=none``: the tarball of OSU's former Spack mirror, which ``configure; make; make install`` links
- ``rpm=<sha256>``: one of the RPMs; there is one for each combination of CUDA, MOFED, compiler and launcher. OSU
  publishes no checksums of them, so it is that of the file that you have and trust. As a part of the spec it is in
  every lock file, and Spack holds the file to it. The RPM is unpacked without root, and its paths are rewritten.
"""

import os
import re
import tempfile

from spack.package import (
    InstallError,
    LibraryList,
    SkipTest,
    depends_on,
    filter_compiler_wrappers,
    filter_file,
    find_headers,
    find_libraries,
    install_tree,
    join_path,
    provides,
    requires,
    tty,
    variant,
)
from spack_repo.builtin.build_systems.generic import Package
from spack_repo.builtin.packages.mpich.package import MpichEnvironmentModifications
from spack_repo.hidl import rpm
from spack_repo.hidl.smoke import compiled_program, run_ranks

_WRAPPERS = {"CC": ("mpicc",), "CXX": ("mpicxx", "mpic++")}


def _is_rpm(value):
    return value == "none" or re.match(r"[0-9a-f]{64}$", value) is not None


def _is_distribution(value):
    return re.match(r"stock-ofed$|(mofed|ifs)\d+\.\d+$", value) is not None


class Mvapich2Binary(MpichEnvironmentModifications, Package):
    """The base of both. A package of it gives ``rpm_name``, ``rpm_folder`` and ``feature_arguments``."""

    homepage = "https://mvapich.cse.ohio-state.edu"
    manual_download = True

    provides("mpi@:3.1")

    variant("rpm", default="none", values=_is_rpm, description="SHA-256 of the RPM to install; none: the tarball")
    variant(
        "distribution",
        default="stock-ofed",
        values=_is_distribution,
        description="Fabric's software that the binaries were made for: stock-ofed, mofed<X.Y> or ifs<X.Y>",
    )
    variant(
        "pmi_version",
        default="pmi1",
        values=("simple", "pmi1", "pmi2", "pmix", "pmi4pmix"),
        description="PMI to talk to the process manager with; Hydra and mpirun_rsh have their own",
    )

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("fortran", type="build", when="rpm=none")
    depends_on("bison", type="build", when="rpm=none")
    depends_on("gmake", type="build", when="rpm=none")
    depends_on("libpciaccess", when="rpm=none")
    depends_on("libxml2@:2.13", when="rpm=none")  # the objects were compiled for libxml2.so.2
    depends_on("slurm", when="rpm=none process_managers=slurm")
    depends_on("pbs", when="rpm=none process_managers=pbs")
    depends_on("pmix", when="rpm=none pmi_version=pmix")

    requires(
        "pmi_version=pmi1",
        "pmi_version=pmi2",
        "pmi_version=pmix",
        policy="one_of",
        when="process_managers=slurm",
        msg="Slurm's process manager takes pmi1, pmi2 or pmix",
    )

    filter_compiler_wrappers("mpicc", "mpicxx", "mpif77", "mpif90", "mpifort", relative_root="bin")

    def __init__(self, spec):
        super().__init__(spec)
        # This file and no other, by Spack's own fetching, mirrors and checksums; its name needs the compiler.
        if self.is_rpm and spec.dependencies(virtuals="c"):
            url = f"{self.rpm_folder}/{self.rpm_name}"
            source = {"url": url, "sha256": spec.variants["rpm"].value, "expand": False}
            self.versions = dict.fromkeys(self.versions, source)

    @property
    def is_rpm(self):
        """Is it an RPM that is installed? False for a spec that leaves this open."""
        return "rpm" in self.spec.variants and self.spec.variants["rpm"].value != "none"

    @property
    def download_instr(self):
        """What to download, where to put it, and its checksum; Spack says it where no download succeeds."""
        sha256 = self.versions[self.version]["sha256"]
        kept = f"_source-cache/archive/{sha256[:2]}/{sha256}" + ("" if self.is_rpm else ".tar.gz")
        where = self.rpm_folder if self.is_rpm else os.path.dirname(self.url)
        what = self.rpm_name if self.is_rpm else os.path.basename(self.url_for_version(self.version))
        return (
            f"OSU gives {self.name} as a binary only.\n"
            f"  Download {what}\n      from {where} or {self.homepage}/downloads/\n"
            f"  Its SHA-256 is {sha256}\n"
            f"  Put it into a mirror of yours, DIR, as DIR/{kept}\n"
            "  and make that known: spack mirror add binaries file://DIR"
        )

    @property
    def compiler_label(self):
        """The compiler as OSU's RPMs name it, such as gnu8.5.0."""
        names = {"gcc": "gnu", "nvhpc": "pgi", "intel-oneapi-compilers": "intel"}
        compiler = self.spec["c"]
        return f"{names.get(compiler.name, compiler.name)}{compiler.version}"

    @property
    def enterprise_linux(self):
        """The release of Enterprise Linux as RPMs name it, such as el8; that is assumed on other systems."""
        release = re.match(r"(rhel|centos|rocky|almalinux|ol|scientific)(\d+)", str(self.spec.os))
        return f"el{release.group(2) if release else 8}"

    @property
    def libs(self):
        """libmpi, with the C++ library before it where that is asked for and there."""
        wanted = ["libmpicxx"] if "cxx" in self.spec.last_query.extra_parameters else []
        for directory in (self.prefix.lib64, self.prefix.lib):
            found = find_libraries("libmpi", root=directory, shared=True)
            if found:
                return find_libraries(wanted, root=directory, shared=True) + found if wanted else found
        return LibraryList([])

    @property
    def headers(self):
        """mpi.h"""
        return find_headers("mpi", root=self.prefix.include)

    def install(self, spec, prefix):
        """Link what the tarball holds, or unpack the RPM."""
        if self.is_rpm:
            self._install_rpm(prefix)
        else:
            self.module.configure(f"--prefix={prefix}", *self.configure_arguments())
            self.module.make()
            self.module.make("install")

    def configure_arguments(self):
        """All but ``--prefix``."""
        arguments = [
            "--enable-shared",
            "--disable-static",
            "--disable-rdma-cm",
            "--disable-gl",
            "--without-hydra-ckpointlib",
            "--with-ch3-rank-bits=32",
        ]
        if self.spec.satisfies("%fortran=gcc@10:"):  # which rejects the arguments of MPI's old Fortran interface
            arguments += ["FFLAGS=-fallow-argument-mismatch", "FCFLAGS=-fallow-argument-mismatch"]
        return arguments + self.process_manager_arguments() + self.feature_arguments()

    def process_manager_arguments(self):
        """How configure.ac and src/pm of MVAPICH2 2.3.7 name the process managers; mpirun is its default.

        Hydra and mpirun_rsh bring a PMI of their own, and Hydra refuses any other. jsrun's is JSM.
        """
        spec = self.spec
        manager, pmi = spec.variants["process_managers"].value, spec.variants["pmi_version"].value
        names = {"mpirun": None, "mpiexec": "hydra", "pbs": "hydra", "jsrun": "jsm"}
        name = names.get(manager, manager)
        arguments = [f"--with-pm={name}"] if name else []
        if manager in ("none", "slurm", "jsrun"):
            arguments.append(f"--with-pmi={pmi}")
            if pmi == "pmix":
                arguments.append("--with-pmix={}".format(spec["pmix"].prefix))
        if manager in ("slurm", "pbs"):
            arguments.append(f"--with-{manager}={spec[manager].prefix}")
        return arguments

    def _install_rpm(self, prefix):
        (file,) = os.listdir(self.stage.source_path)
        with tempfile.TemporaryDirectory(dir=self.stage.path) as directory:
            try:
                paths = rpm.unpack(join_path(self.stage.source_path, file), directory)
            except rpm.RpmError as error:
                raise InstallError(str(error)) from error
            places = [os.path.dirname(os.path.dirname(path)) for path in paths if path.endswith("/bin/mpicc")]
            if len(places) != 1:
                raise InstallError(f"{file} holds {len(places)} times bin/mpicc, and one is wanted")
            install_tree(join_path(directory, places[0]), prefix)
        self._rewrite_paths("/" + places[0], str(prefix))
        self._name_compilers(prefix.bin)

    def _rewrite_paths(self, old, new):
        """Put the prefix ``new`` for that of the RPM, ``old``, into every text; programs and libraries are left."""
        untouched = []
        for path, content in _contents(new):
            if old.encode() not in content:
                continue
            if b"\0" in content:
                untouched.append(os.path.relpath(path, new))
                continue
            mode = os.stat(path).st_mode
            with open(path, "wb") as file:
                file.write(content.replace(old.encode(), new.encode()))
            os.chmod(path, mode)
        if untouched:
            tty.warn("{} know the path {}, and are left as they are: {}".format(self.name, old, " ".join(untouched)))

    def _name_compilers(self, directory):
        """Have the wrappers call this spec's compilers, not those of the machine that made the RPM."""
        compilers = {"CC": self.spec["c"].package.cc, "CXX": self.spec["cxx"].package.cxx}
        for variable, path in compilers.items():
            for wrapper in _WRAPPERS[variable]:
                if os.path.isfile(join_path(directory, wrapper)):
                    filter_file(rf"^{variable}=.*", f'{variable}="{path}"', join_path(directory, wrapper))

    def setup_dependent_build_environment(self, env, dependent_spec):
        """The wrappers' names, and Spack's own compilers below them."""
        self.setup_mpi_wrapper_variables(env)
        super().setup_dependent_build_environment(env, dependent_spec)

    def setup_run_environment(self, env):
        """What programs that link it need; ``srun`` has no plugin for PMI-1, and needs none."""
        self.setup_mpi_wrapper_variables(env)
        pmi = self.spec.variants["pmi_version"].value
        if self.spec.satisfies("process_managers=slurm"):
            env.set("SLURM_MPI_TYPE", pmi if pmi in ("pmi2", "pmix") else "none")
        if self.is_rpm:
            env.prepend_path("LD_LIBRARY_PATH", self.prefix.lib64)

    def test_two_ranks(self):
        """compile a program with mpicc and run it on 2 ranks"""
        if self.spec.variants["process_managers"].value in ("slurm", "jsrun", "none"):
            raise SkipTest("its ranks start in an allocation only")
        output = run_ranks(self.spec, compiled_program(self, "two-ranks"))
        assert "2 ranks, sum 1" in output, output


def _contents(root):
    """``(path, bytes)`` of each file that is no link, below ``root``."""
    for directory, folders, names in os.walk(root):
        folders[:] = [folder for folder in folders if folder != ".spack"]
        for path in (os.path.join(directory, name) for name in names):
            if not os.path.islink(path):
                with open(path, "rb") as file:
                    yield path, file.read()
