"""The standard input of MPICH's mpiexec, which must not end after the ranks have."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.templates import render_script
from tests.waiting import patience

#: mpiexec reads its standard input half a second late, as on a busy machine. Its proxies, in which the descriptor is
#: another one, do not load this.
LATE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void alone(void) { unsetenv("LD_PRELOAD"); }
ssize_t read(int file, void *buffer, size_t size) {
    static ssize_t (*real)(int, void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "read");
    if (file == 0) usleep(500000);
    return real(file, buffer, size);
}
"""


@pytest.mark.parametrize(("own_program", "status"), [(True, 0), (False, 128 + 13)], ids=["own", "workload"])
def test_a_short_program_does_not_end_mpiexec(
    stack_prefix: Callable[[str], Path], tmp_path: Path, own_program: bool, status: int
) -> None:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("NO C COMPILER")
    (tmp_path / "late.c").write_text(LATE)
    library = tmp_path / "late.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "late.c", "-ldl"], check=True)
    function = render_script("launchers/run_ranks.sh.j2", {"hydra": True, "meets": own_program})
    launch = f"run_ranks 4 env LD_PRELOAD={library} {stack_prefix('mpi')}/bin/mpiexec -n 4 true"
    script = f"tell_program() {{ :; }}\nstep=1\n{function.replace('tell_program()', 'unused()')}\n{launch}"
    done = subprocess.run(["bash", "-c", script], timeout=patience(60), check=False, capture_output=True)
    assert done.returncode == status, done.stderr
