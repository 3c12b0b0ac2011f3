"""PBS Professional as a stand-in."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hidl_cli.documents import write_text
from hidl_twin.batch import task
from hidl_twin.batch.settings import Host, Settings
from hidl_twin.batch.store import FINAL, Job, Store
from hidl_twin.batch.system import System
from hidl_twin.pbs import commands, mpiexec, options, qstat, qsub

_STATUS = {"qstat": 255, "pbsnodes": 1}
_VERSION = "23.06.06"
#: A site's rules, as options of qsub.
_OPTIONS = {"time": "-l walltime", "partition": "-q", "reservation": "-q"}


class Pbs(System):
    """See ``System``."""

    name = "pbs"
    title = "PBS Professional"
    daemon = "pbs_server"
    variable = "PBS_CONF_FILE"
    commands: ClassVar = {
        "qsub": qsub.qsub,
        "qstat": qstat.qstat,
        "qdel": commands.qdel,
        "qselect": commands.qselect,
        "pbsnodes": commands.pbsnodes,
    }
    launchers: ClassVar = {"mpiexec": mpiexec.mpiexec}
    launcher_place = "pals/bin"
    launcher = "pals"
    internal: ClassVar = {"task": task.task}

    def place(self, directory: Path) -> Path:
        """A file, as PBS's own /etc/pbs.conf; the stand-in's commands know their directory without it."""
        return directory / "settings.json"

    def environment(self, store: Store, job: Job) -> dict[str, str]:
        """See ``System``; writes the file of hosts: one line per MPI rank that the chunks ask for."""
        directory = store.job_directory(job.id)
        lines, hosts = [], list(job.hosts)
        for count, each in options.chunks(options.resources(job.options).get("select", "1:ncpus=1")):
            for _ in range(count):
                lines += [hosts.pop(0)] * each.get("mpiprocs", 1)
        write_text(directory / "nodefile", "".join(f"{host}\n" for host in lines))
        return {
            "PBS_ENVIRONMENT": "PBS_BATCH",
            "PBS_JOBDIR": str(Path.home()),
            "PBS_JOBID": f"{job.id}.{store.settings.login_host}",
            "PBS_JOBNAME": job.options["N"],
            "PBS_NODEFILE": str(directory / "nodefile"),
            "PBS_NODENUM": "0",
            "PBS_TASKNUM": "1",
            "PBS_QUEUE": job.queue,
            "PBS_O_HOST": job.from_host,
            "PBS_O_QUEUE": job.queue,
            "PBS_O_SYSTEM": "Linux",
            "PBS_O_WORKDIR": job.cwd,
        }

    def obstacle(self, store: Store, job: Job) -> str:
        """A hold (-h), or a dependency (-W depend=afterok:ID) that is not met."""
        if "h" in job.options:
            return "Job held by user"
        for word, number in re.findall(r"(after\w*):(\d+)", job.options.get("W", "")):
            other = store.job(number)
            if other is not None and (
                other.stat not in FINAL
                or (word == "afterok" and other.stat != "DONE")
                or (word == "afternotok" and other.stat != "EXIT")
            ):
                return "Job dependency not satisfied"
        return ""

    def fits(self, job: Job, host: Host) -> bool:
        """By the processors and the GPUs of its chunks."""
        chunks = [each for _, each in options.chunks(options.resources(job.options).get("select", ""))]
        cpus = host.slots * host.threads_per_core
        return all(each.get("ncpus", 0) <= cpus and each.get("ngpus", 0) <= host.gpus for each in chunks)

    def directory(self, job: Job) -> Path:
        """The user's home: a script changes to $PBS_O_WORKDIR itself."""
        return Path.home()

    def concluded(self, store: Store, job: Job, status: int, reason: str) -> None:
        """Copy the output to where -o and -e say, or to NAME.oID and NAME.eID."""
        given, directory = job.options, store.job_directory(job.id)
        named = {
            "out": given.get("o", f"{job.cwd}/{given['N']}.o{job.id}"),
            "err": given.get("e", f"{job.cwd}/{given['N']}.e{job.id}"),
        }
        for stream, file in named.items():
            path = Path(job.cwd, re.sub(r"^[\w.-]+:(?=/)", "", file))
            if path.is_dir():
                path /= f"{job.id}.{store.settings.login_host}.{'OU' if stream == 'out' else 'ER'}"
            if given.get("j") != {"out": "eo", "err": "oe"}[stream] and (directory / stream).is_file():
                with suppress(OSError):
                    shutil.copy(directory / stream, path)

    def files(self, store: Store, job: Job) -> tuple[Path, Path]:
        """Spooled, and joined as -j says."""
        directory = store.job_directory(job.id)
        return {
            "oe": (directory / "out", directory / "out"),
            "eo": (directory / "err", directory / "err"),
        }.get(job.options.get("j", "n"), (directory / "out", directory / "err"))

    def unanswered(self, store: Store, command: str) -> None:
        """No server: every command ends at once."""
        server = store.settings.login_host
        own = f"{command}: cannot connect to server {server} (errno=15010)"
        told = {"qdel": f"Couldn't connect to cluster: {server}"}.get(command, own)
        print(f"Connection refused\n{told}", file=sys.stderr)
        sys.exit(_STATUS.get(command, 162))

    def host_states(self, store: Store) -> dict[str, str]:
        """As pbsnodes shows them."""
        return commands.states(store)

    def settings(self, settings: Settings, rules: Mapping[str, str], account: str) -> Settings:
        """The options that a hook of the site requires; scripts start on the first host."""
        named = _OPTIONS | {"account": "-A"}
        required = tuple(named[rule] for rule in rules if rule in named)
        return replace(settings, version=_VERSION, required=required, launch_host=None)
