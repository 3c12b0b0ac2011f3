from spack.package import conflicts, maintainers, version
from spack_repo.builtin.packages.mvapich_plus.package import MvapichPlus as BuiltinMvapichPlus
from spack_repo.hidl.smoke import compiled_program, run_ranks


class MvapichPlus(BuiltinMvapichPlus):
    """MVAPICH-Plus: MPI 4.1 on MPICH's base for clusters with GPUs and InfiniBand, Slingshot or Omni-Path, from the
    Ohio State University. Binaries only, unpacked by OSU's installer. To Spack's own package this adds version 5.0.0,
    what to download and where to put it, and a test."""

    maintainers("hidl-developers")

    version(
        "5.0.0",
        sha256="23170011b09f10916782245ad5975567d5f76ae0db8602f5d2cda889186753c2",
        url="https://mvapich.cse.ohio-state.edu/download/mvapich/plus/5.0.0/mvapich-plus-installer.sh",
        expand=False,
    )

    for _family in ("aarch64", "ppc64le"):
        conflicts(f"target={_family}:", msg="OSU's binaries of MVAPICH-Plus are for x86_64 alone")

    @property
    def download_instr(self):
        """What to download, where to put it, and its checksum; Spack says it where no download succeeds."""
        source = self.versions[self.version]
        return (
            "OSU gives MVAPICH-Plus as a binary only, for x86_64 and Enterprise Linux 8 and 9.\n"
            "  Download {url}\n"
            "  Its SHA-256 is {sha256}\n"
            "  Put it into a mirror of yours, DIR, as DIR/_source-cache/archive/{start}/{sha256}\n"
            "  and make that known: spack mirror add binaries file://DIR\n"
            "  The installer fetches the RPM of your combination itself: it needs the network."
        ).format(start=source["sha256"][:2], **source)

    def test_two_ranks(self):
        """compile a program with mpicc and run it on 2 ranks"""
        output = run_ranks(self.spec, compiled_program(self, "two-ranks"))
        assert "2 ranks, sum 1" in output, output
