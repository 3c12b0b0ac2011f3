"""Start a program of the user's own on one rank: in its directory, with what programs without MPI need to meet.

::

    mpiexec -n 2 python -m hidl_workloads.own_program [--stdin FILE] [--container JSON [--check]] DIRECTORY COMMAND...

All words are encoded (``encode``), because launchers take some for their own: ``:`` begins another program, for one.
The process becomes COMMAND (``execvp``). Its environment gets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and, where the
launcher tells it, ``LOCAL_WORLD_SIZE``, as torchrun sets them; the job has set ``MASTER_ADDR`` and ``MASTER_PORT``.
Variables of Slurm and of other launchers that describe another process (the daemon that started this rank, for one) are
corrected or removed, and TensorFlow gets ``TF_CONFIG``. In a run on GPUs, it gets the names of its rank's own as
``HIDL_GPU``, and sees all of its job's: as with torchrun, it chooses by ``LOCAL_RANK``. Rank 0 reads FILE as its
standard input, from the beginning, and all other ranks find an empty one: launchers differ in what they forward and to
which ranks. FILE may be relative to the run's directory, which ``$HIDL_FINDINGS`` names: in a container of pyxis, ranks
start in the image's own directory. A launcher that tells another number of ranks than ``$HIDL_WORLD_SIZE``, or no
number of this rank, is an error.
"""

from __future__ import annotations

import os
import sys

from hidl_workloads import killed_ranks, launcher_environment

TYPE_CHECKING = False  # the typing module is not imported at run time: start-up time counts
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

EXPECTED_SIZE = "HIDL_WORLD_SIZE"
WRONG_WORLD = 86
"""Exit status as of ``hidl_workloads.world``."""

NO_GPU = 88
"""Exit status as of ``hidl_workloads.world``."""

RANKS_PER_NODE = "HIDL_RANKS_PER_NODE"
"""The number of ranks on a full node."""

PROCESSES = "HIDL_PROCESSES"
"""The number of processes that the program itself starts on each node, as torchrun does."""

MOST_RANKS = "HIDL_MOST_RANKS"
"""In a run whose jobs may have different numbers of nodes: the number of processes on the largest number of nodes."""

SEPARATE_RANKS = "HIDL_SEPARATE_RANKS"
"""Set if the ranks may form other worlds than the launched one."""

STDIN = "--stdin"
"""The option before the file that is rank 0's standard input; a directory is an absolute path, and never reads so."""

CONTAINER = "--container"
"""The option before the container in which COMMAND starts."""

CHECK = "--check"
"""The option that checks the world of COMMAND's MPI library in the container instead of starting COMMAND."""

_CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "world_check")  # noqa: PTH100, PTH118, PTH120

_DELETE = 127

NO_DIRECTORY, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127


def main(arguments: list[str]) -> int:
    """Become the program; returns an exit status only if that fails."""
    file, container, check, (directory, *command) = _split(list(map(decode, arguments)))
    try:
        variables = rank_variables(os.environ)
    except ValueError as error:
        print(f"hidl: wrong world: {error}", file=sys.stderr)
        return WRONG_WORLD
    file = os.path.join(os.path.dirname(os.environ.get("HIDL_FINDINGS", "")), file)  # noqa: PTH118, PTH120
    try:
        # Some launchers never close the standard input of other ranks.
        os.dup2(os.open(file if variables["RANK"] == "0" else os.devnull, os.O_RDONLY), 0)
    except OSError as error:
        _tell(
            f"hidl: standard input {os.path.abspath(file)}: {error.strerror} on {os.uname().nodename}\n"  # noqa: PTH100
            "next: put it where all nodes can read it, and keep it until the run has ended\n"
        )
        return NO_DIRECTORY
    killed_ranks.remove_shared_memory(os.environ)
    hosts = read_hosts(os.environ)
    try:
        os.chdir(directory)
    except OSError as error:
        _tell(
            f"hidl: {directory}: {error.strerror} on {os.uname().nodename}\n"
            "next: start hidl in a directory that all nodes share\n"
        )
        return NO_DIRECTORY
    os.environ.update(variables, PWD=directory)
    correct_environment(os.environ, hosts)
    _correct_temporary_directory()
    if os.environ.get("HIDL_DEVICE") == "gpu" and (fault := _name_gpus(int(variables.get("LOCAL_RANK", "0")))):
        print(fault, file=sys.stderr)
        return NO_GPU
    command = with_rendezvous(command, os.environ)
    if container is not None:
        from hidl_workloads import container as containers

        try:
            command = containers.enter(container, command, directory, os.environ, check=check)
        except containers.NoRuntime as error:
            _tell(containers.message(error))
            return NOT_FOUND
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"hidl: {command[0]}: {error.strerror} in {directory} on {os.uname().nodename}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _split(words: list[str]) -> tuple[str, str | None, bool, list[str]]:
    """Return the file of the standard input, the container, whether to check, and the directory with the command."""
    file, container = os.devnull, None
    if words[0] == STDIN:
        file, words = words[1], words[2:]
    if words[0] == CONTAINER:
        container, words = words[1], words[2:]
    check = words[0] == CHECK
    return file, container, check, words[check:]


def _correct_temporary_directory() -> None:
    """Replace a ``TMPDIR`` that this node does not have by ``/tmp``; job.sh does so on the first node alone."""
    place = os.environ.get("TMPDIR")
    if place and not (os.path.isabs(place) and os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)):  # noqa: PTH112, PTH117
        os.environ["TMPDIR"] = "/tmp"
        sys.stderr.write(f"hidl: TMPDIR {place} is not a writable directory on {os.uname().nodename}: using /tmp\n")


def _tell(text: str) -> None:
    """Print it at once, and wait until it is read: the launcher ends all ranks when this one has failed."""
    from contextlib import suppress

    from hidl_workloads import streams

    sys.stderr.write(text)
    sys.stderr.flush()
    with suppress(OSError):  # it is closed
        streams.wait_until_read(2)


def _name_gpus(local_rank: int) -> str | None:
    """Set ``$HIDL_GPU`` for the program, which sees all GPUs of its job; return what to say if there are none."""
    from hidl_workloads import gpus

    try:
        gpus.take(os.environ, local_rank, first=False)
    except gpus.NoGpu as error:
        return gpus.message(str(error), os.uname().nodename, int(os.environ["RANK"]))
    return None


def with_rendezvous(command: list[str], environment: MutableMapping[str, str]) -> list[str]:
    """Tell torchrun and accelerate, of which each node starts one, how they meet; return the words of the command.

    torchrun reads the defaults of its options from variables, also if a shell starts it. The options of accelerate are
    added to its words.
    """
    if PROCESSES not in environment:
        return command
    nodes, processes = environment["WORLD_SIZE"], environment[PROCESSES]
    address, port, node = (environment[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    names = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
    environment.update(zip(names, (nodes, processes, node, address, port), strict=True))
    at = next((at for at, word in enumerate(command) if word in ("launch", "accelerate.commands.launch")), None)
    if at is None or not any("accelerate" in word for word in command[: at + 1]):
        return command
    total = int(nodes) * int(processes)
    options = {"num_machines": nodes, "machine_rank": node, "num_processes": total}
    options |= {"main_process_ip": address, "main_process_port": port}
    added = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [*command[: at + 1], *(["--multi_gpu"] if total > 1 else []), *added, *command[at + 1 :]]


def encode(words: Sequence[str]) -> list[str]:
    """Return ``words`` as any launcher passes them on: ``:``, ``%`` and control characters as ``%`` and two digits.

    An empty word becomes ``%``. Words without such characters stay as they are.
    """

    def special(character: str, word: str) -> bool:
        return character == "%" or word == ":" or ord(character) < ord(" ") or ord(character) == _DELETE

    return ["".join(f"%{ord(c):02X}" if special(c, word) else c for c in word) or "%" for word in words]


def decode(word: str) -> str:
    """Return the word that ``encode`` was given."""
    first, *others = word.split("%")
    return first + "".join(chr(int(other[:2], 16)) + other[2:] for other in others if other)


def rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for this rank; ``ValueError`` if the launcher tells no rank or another size."""
    expected = int(environment[EXPECTED_SIZE])
    size = launcher_environment.read_number(launcher_environment.SIZES_OF_STEPS, environment)
    rank = launcher_environment.read_number(launcher_environment.RANKS, environment)
    if size is not None and size != expected:
        raise ValueError(f"the launcher started {size} rank(s), expected {expected}")
    if rank is None and expected > 1:
        raise ValueError(
            "no launcher variable found: the launcher did not start this program, or did not pass its variables on"
        )
    local = {
        "LOCAL_RANK": launcher_environment.read_number(launcher_environment.LOCAL_RANKS, environment),
        "LOCAL_WORLD_SIZE": launcher_environment.read_number(launcher_environment.LOCAL_SIZES, environment)
        or launcher_environment.ranks_of_srun(environment),
    }
    known = {"RANK": rank or 0, "WORLD_SIZE": expected, **local}
    return {name: str(value) for name, value in known.items() if value is not None} | _node(environment, known)


def _node(environment: Mapping[str, str], known: Mapping[str, int | None]) -> dict[str, str]:
    """Return the variables with the number of this rank's node; empty if unknown."""
    size, local_rank = known["WORLD_SIZE"], known["LOCAL_RANK"]
    rank, ranks_per_node = known["RANK"], environment.get(RANKS_PER_NODE, "")
    slurm = environment.get("SLURM_PROCID"), environment.get("SLURM_STEP_NUM_TASKS")
    if slurm == (str(rank), str(size)) and environment.get("SLURM_NODEID", "").isdecimal():
        node = int(environment["SLURM_NODEID"])
    elif rank is not None and ranks_per_node.isdecimal() and int(ranks_per_node) > 0:
        node, place = divmod(rank, int(ranks_per_node))
        if place != (place if local_rank is None else local_rank):
            return {}  # ranks are not placed in blocks
    else:
        return {}
    return dict.fromkeys(launcher_environment.NODES, str(node))


def read_hosts(environment: Mapping[str, str]) -> list[str]:
    """Return the hosts of this launch in the order of the ranks; empty if unknown."""
    try:
        with open(os.path.join(os.path.dirname(environment["HIDL_METRICS"]), "hosts"), encoding="utf-8") as file:  # noqa: PTH118, PTH120, PTH123
            return [line.split()[0].partition(":")[0] for line in file if line.strip()]
    except (KeyError, OSError):
        return []


def correct_environment(environment: MutableMapping[str, str], hosts: Sequence[str]) -> None:
    """Make the variables of launchers and frameworks describe this rank.

    Args:
        environment: The environment, with torchrun's variables.
        hosts: The hosts of the launch, in the order of the ranks.
    """
    rank, size = environment["RANK"], environment["WORLD_SIZE"]
    for name in launcher_environment.of_other_launchers(environment, int(rank), int(size)):
        del environment[name]
    environment.pop("TF_CONFIG", None)
    world = int(size) * int(environment.get(PROCESSES, "1"))
    if world > 1 and SEPARATE_RANKS not in environment:
        environment[launcher_environment.OF_THIS_RANK] = rank
        environment["HIDL_RANK_PROCESS"] = str(os.getpid())  # also the program's, which replaces this process
        environment["HIDL_EXPECTED_WORLD"] = str(world)
        places = [_CHECK, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(places)
    ranks_per_node = environment.get(RANKS_PER_NODE, "")
    if not ranks_per_node.isdecimal() or int(ranks_per_node) < 1:
        return
    changes = launcher_environment.correct_slurm(environment, environment, hosts, int(ranks_per_node))
    port = environment.get("MASTER_PORT", "")
    if port.isdecimal() and PROCESSES not in environment:
        reached = [environment["MASTER_ADDR"]] if len(hosts) == 1 else hosts
        changes["TF_CONFIG"] = launcher_environment.tensorflow_cluster(
            environment, reached, int(ranks_per_node), int(port) + 1
        )
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
