"""Read ReFrame's settings. A ``settings.py`` is executed by a separate process, which only returns JSON."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from archspec.cpu import TARGETS

from hidl_cli import paths, process
from hidl_cli.errors import InvalidInput, MissingPrecondition, ProcessFailed, UsageError
from hidl_cli.inputs.problems import clipped
from hidl_cli.mpi import library_of_module
from hidl_cli.redaction import redact_variable
from hidl_cli.site.configurations import isolation
from hidl_cli.site.configurations.carried import ConfigurationFile, Key
from hidl_cli.site.draft import simple

_SECONDS = float(isolation.SECONDS)
#: Runs a command in separate namespaces: it has no network, and its child processes end with it.
ISOLATED = ("unshare", "--user", "--map-root-user", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount")
_VARIABLES = ("PATH", "LANG", "LC_ALL")
_SEARCH_PATHS = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "CPATH",
    "PYTHONPATH",
    "MANPATH",
    "LD_PRELOAD",
    "MODULEPATH",
)
_TEMPORARY = ("/tmp", "/var/tmp", "/run", "/dev/shm")

_SCHEDULERS = {
    "slurm": "slurm",
    "squeue": "slurm",
    "lsf": "lsf",
    "pbs": "pbs",
    "torque": "pbs",
    "flux": "flux",
    "ssh": "ssh",
}
_LAUNCHERS = {
    "srun": "srun",
    "srunalloc": "srun",
    "ibrun": "ibrun",
    "mpiexec": "mpiexec",
    "mpirun": "mpirun",
    "mpirun-openmpi": "mpirun",
    "mpirun-intelmpi": "mpiexec",
}
_RUNTIMES = {"Apptainer": "apptainer", "Singularity": "apptainer", "Shifter": "shifter"}
_ANY_HOST = {"", ".", ".*", ".+", "^.*", "^.*$", "^.+$"}
#: Short and long names of options in `access`, and the corresponding keys of a partition in the site file.
_ACCESS = {
    "slurm": {
        "p": "queue",
        "partition": "queue",
        "q": "qos",
        "qos": "qos",
        "C": "constraint",
        "constraint": "constraint",
    },
    "lsf": {"q": "queue"},
    "pbs": {"q": "queue"},
    "flux": {"q": "queue", "queue": "queue"},
}
#: Options of `resources`, and the policies that they correspond to.
_RESOURCES = (
    (re.compile(r"--gres=gpu:(?:(?P<model>[A-Za-z0-9_-]+):)?{\w+}"), "gpus", "gres"),
    (re.compile(r"--gpus-per-node=(?:(?P<model>[A-Za-z0-9_-]+):)?{\w+}"), "gpus", "gpus-per-node"),
    (re.compile(r"--mem=(?P<model>){\w+}"), "memory", "mem"),
    (re.compile(r"--mem-per-cpu=(?P<model>){\w+}"), "memory", "mem-per-cpu"),
)
_OWN = ("logging", "general", "modes", "storage", "autodetect_methods")
_ACCOUNTS = {
    "slurm": ("A", "account"),
    "lsf": ("P", "G"),
    "pbs": ("A", "P"),
    "flux": ("B", "bank"),
}
#: A policy, the value that a partition implies, and its source.
_Policies = dict[str, tuple[Any, str]]
#: Most specific first: which definitions of an environment apply to a partition.
_TARGETS = ("{system}:{partition}", "{system}:*", "{system}", "*:{partition}", "*:*", "*")


def execute_settings(file: Path, *, required: bool = True) -> tuple[Any, str | None]:
    """Execute a ``settings.py`` and return its ``site_configuration``, and a remark if the process was not isolated.

    Args:
        file: The settings.
        required: Whether to reject settings that cannot be isolated on this machine.

    Raises:
        MissingPrecondition: The kernel does not permit the isolation, and it is required.
        InvalidInput: The file cannot be executed or defines no configuration.
    """
    file = file.resolve()
    with paths.temporary_directory("reframe") as directory:
        environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        try:
            text = _execute(file, directory, environment | {"HOME": "/tmp"}, isolated=True)
            remark = None
        except MissingPrecondition as error:
            if required:
                raise
            text = _execute(file, directory, environment | {"HOME": str(directory)}, isolated=False)
            remark = f"{file} was executed with access to your files, variables and network ({error.message})"
    try:
        return json.loads(text), remark
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{file} cannot be read: its site_configuration is not valid as JSON") from error


def _execute(file: Path, directory: Path, environment: dict[str, str], *, isolated: bool) -> str:
    """Return what the settings print, from a process with limits."""
    private = _private_directories()
    hidden = [
        place for place in private if not any(Path(place).is_relative_to(one) and place != one for one in private)
    ]
    parts = {file if str(file.parent) in private else file.parent, *map(Path, (sys.prefix, sys.base_prefix))}
    kept = sorted({*map(str, parts), *(str(part.resolve()) for part in parts)})
    given = {"file": str(file), "isolated": isolated, "hidden": hidden, "kept": kept}
    document = json.dumps(given | {"outside": str(Path("/proc/self/ns/mnt").readlink())})
    command = [sys.executable, "-I", str(Path(isolation.__file__)), document]
    prefix: Sequence[str] = ISOLATED if isolated else ()
    try:
        if isolated:
            process.run([*prefix, "true"], env=environment, timeout=_SECONDS)
    except ProcessFailed as error:
        raise _not_isolated(file, error) from error
    try:
        return process.run([*prefix, *command], cwd=directory, env=environment, timeout=_SECONDS).stdout
    except ProcessFailed as error:
        if isolated and error.status == isolation.NOT_ISOLATED:
            raise _not_isolated(file, error) from error
        raise InvalidInput(
            f"{file} cannot be executed: {_last_line(error)}",
            hint="it runs with hidl's Python, and without your variables and files; write its site_configuration "
            "to a JSON file, and pass that file",
        ) from error


def _private_directories() -> list[str]:
    """Return the directories with files and sockets of the user and of services."""
    places = map(Path, [*_TEMPORARY, str(Path.home()), os.environ.get("XDG_RUNTIME_DIR", "/run")])
    return sorted({str(place.resolve()) for place in places if place.is_dir()} - {"/"})


def _not_isolated(file: Path, error: ProcessFailed) -> MissingPrecondition:
    return MissingPrecondition(
        f"{file} is a program, and hidl cannot isolate it on this machine: {_last_line(error)}",
        hint="write its dictionary to a JSON file where you trust it, and give that, or add --no-isolation",
    )


def _last_line(error: ProcessFailed) -> str:
    lines = [line for line in (error.output or "").strip().splitlines() if line.strip()]
    return clipped(lines[-1], 200) if lines else f"exit status {error.status}"


def read_settings(file: ConfigurationFile, wanted: str | None) -> None:
    """Read the settings of one system: its partitions, their nodes, and the MPI libraries of its environments."""
    at = ("systems", _choose(file, wanted))
    name = file.text(*at, "name") or ""
    file.cluster = simple(name) or None
    for other in file.keys("systems"):
        if other != at[1]:
            file.leave("systems", other, why=f"this draft is for system {name}")
    file.carry(("title",), file.text(*at, "descr"), f"system {name}")
    hosts = [one for one in file.words(*at, "hostnames") if one not in _ANY_HOST]
    if hosts:
        file.carry(("match", "hostname"), f"({'|'.join(hosts)}).*", "hostnames, which ReFrame matches at the beginning")
    file.leave(*at, "modules_system", why="hidl detects the module system")
    if modules := file.words(*at, "modules"):
        file.carry(("policies", "modules"), modules, f"modules of system {name}")
    for key in ("env_vars", "variables"):
        _read_variables(file, (*at, key))
    for key in _OWN:
        file.leave(key, why="settings of ReFrame itself")
    first = _first_scheduler(file, at)
    used: dict[str, list[str]] = {}
    policies: dict[str, _Policies] = {}
    for number in file.keys(*at, "partitions"):
        _read_partition(file, (*at, "partitions", number), first, used, policies)
    _carry_policies(file, policies)
    _request_no_partition(file)
    file.values = [value for value in file.values if value.path != ("partitions", value.value, "queue")]
    chosen = {number for partition, names in used.items() for number in _environments_of(file, name, partition, names)}
    for number in file.keys("environments"):
        _read_environment(file, ("environments", number), is_used=number in chosen)


def _choose(file: ConfigurationFile, wanted: str | None) -> int:
    """Return the index of the system to describe: the only one, or the one with the name ``wanted``."""
    systems: dict[str, int] = {str(file.peek("systems", at, "name")): at for at in file.keys("systems")}
    named = {name: at for name, at in systems.items() if name != "generic"} or systems
    if not named:
        raise InvalidInput(f"{file.name} describes no system", hint="pass the file that defines `systems`")
    if len(named) == 1:
        return next(iter(named.values()))
    for name, at in named.items():
        if wanted is not None and wanted in (name, simple(name)):
            return at
    raise UsageError(
        f"{file.name} describes several systems: {', '.join(map(clipped, named))}",
        hint=f"select one, for example: hidl site new {simple(next(iter(named))) or 'NAME'} --from {file.name}",
    )


def _read_variables(file: ConfigurationFile, at: tuple[Key, ...]) -> None:
    """Carry over variables. Older files contain pairs instead of a mapping.

    Variables that may hold a secret are left out, and those that a shell would expand, because a site file's variables
    are set literally.
    """
    found = file.peek(*at)
    for key in file.keys(*at):
        pair = (key, found[key]) if isinstance(found, dict) else found[key]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            continue
        variable, value = pair[0], pair[1]
        file.take(*at, key)
        if not isinstance(value, (str, int, float)) or redact_variable(variable, str(value)) != str(value):
            file.reasons.append(f"{variable}: not shown (it may contain a secret)")
        elif variable in _SEARCH_PATHS:
            file.reasons.append(f"{variable}: {clipped(str(value))} (it would replace the value of the job)")
        elif value == "":
            file.reasons.append(f"{variable}: (empty)")
        elif shlex.quote(str(value)) != str(value):
            file.reasons.append(
                f"{variable}: {clipped(str(value))} (ReFrame lets a shell expand it; policies.environment is literal)"
            )
        else:
            file.carry(("policies", "environment", variable), str(value), "variables of the system")


def _first_scheduler(file: ConfigurationFile, at: tuple[Key, ...]) -> str | None:
    """Return the scheduler of the first partition that has a supported one: a site has only one."""
    for number in file.keys(*at, "partitions"):
        if found := _SCHEDULERS.get(str(file.peek(*at, "partitions", number, "scheduler"))):
            return found
    return None


def _read_partition(
    file: ConfigurationFile,
    at: tuple[Key, ...],
    first: str | None,
    used: dict[str, list[str]],
    policies: dict[str, _Policies],
) -> None:
    """Read a partition.

    Args:
        file: The settings.
        at: Path of the partition.
        first: The scheduler of the site.
        used: Receives the names of its environments by the name of the partition.
        policies: Receives its policies by the key of the partition.
    """
    name = str(file.peek(*at, "name"))
    key = simple(name)
    scheduler = _SCHEDULERS.get(str(file.peek(*at, "scheduler")))
    if scheduler is None or not key:
        why = f"its scheduler is {file.peek(*at, 'scheduler')}" if key else "its name is not valid"
        file.leave(*at, why=f"{why}, so hidl cannot submit jobs to it")
        return
    if scheduler != first:
        file.leave(*at, why=f"its scheduler is {scheduler}, but a site has only one, here {first}")
        return
    why = f"partition {name}"
    for one in ("name", "scheduler"):
        file.take(*at, one)
    file.carry(("scheduler",), scheduler, why)
    if launcher := _LAUNCHERS.get(str(file.peek(*at, "launcher"))):
        file.take(*at, "launcher")
        file.carry(("launchers",), [launcher], why)
    if descr := file.text(*at, "descr"):
        why += f": {descr}"
    file.carry(("partitions", key, "node_type"), key, why)
    own = policies.setdefault(key, {})
    _read_access(file, at, key, scheduler, why, policies=own)
    _read_hardware(file, at, key, why)
    for number in file.keys(*at, "container_platforms"):
        if runtime := _RUNTIMES.get(str(file.peek(*at, "container_platforms", number, "type"))):
            file.take(*at, "container_platforms", number, "type")
            file.carry(("containers", "runtime"), runtime, why)
    for number in file.keys(*at, "resources"):
        _read_resource(file, (*at, "resources", number), key, why, own)
    used[name] = file.words(*at, "environs")


def _carry_policies(file: ConfigurationFile, policies: Mapping[str, _Policies]) -> None:
    """Carry a policy over if all partitions agree on it, because a site has one for all; for GPUs, those with GPUs."""
    with_gpus = {value.path[1] for value in file.values if value.path[::2] == ("node_types", "gpus")}
    for name in dict.fromkeys(name for own in policies.values() for name in own):
        concerned = [own for key, own in policies.items() if name != "gpus" or name in own or key in with_gpus]
        if all(name in own and own[name][0] == concerned[0][name][0] for own in concerned):
            file.carry(("policies", name), *concerned[0][name])
            continue
        for own in policies.values():
            if name in own:
                value, why = own[name]
                file.reasons.append(f"{why}: policies.{name} {value} (other partitions differ; a site has one policy)")


def _request_no_partition(file: ConfigurationFile) -> None:
    """Configure the site to request no scheduler partition if no `access` names one.

    Otherwise, report the partitions whose `access` does not name one.
    """
    queues = {value.path[1]: value.value for value in file.values if value.path[::2] == ("partitions", "queue")}
    partitions = [value.path[1] for value in file.values if value.path[::2] == ("partitions", "node_type")]
    if partitions and not queues:
        file.carry(("policies", "partition"), "never", "no `access` names a partition of the scheduler")
        return
    for key in partitions:
        if key not in queues:
            file.reasons.append(
                f"partition {key}: `access` names no queue, so hidl requests the queue {key}: correct it"
            )


def _read_access(
    file: ConfigurationFile, at: tuple[Key, ...], key: str, scheduler: str, why: str, *, policies: _Policies
) -> None:
    """Read the options that give access to a partition."""
    for option, value, text in _options(file.words(*at, "access")):
        field = _ACCESS.get(scheduler, {}).get(option)
        if field and value:
            file.carry(("partitions", key, field), value, f"{why}; access {text}")
        elif option in _ACCOUNTS.get(scheduler, ()):
            file.reasons.append(f"{why}: access {text} (an account is a user's: hidl run --account)")
        elif scheduler == "slurm" and option == "exclusive" and not value:
            policies["exclusive"] = (True, f"{why}; access {text}")
        elif scheduler == "slurm" and option == "gres" and _requests_gpus(str(value)):
            _imply(file, policies, "gpus", "gres", f"{why}; access {text}")
        elif scheduler == "slurm" and option == "gpus-per-node" and _requests_gpus(f"gpu:{value}"):
            _imply(file, policies, "gpus", "gpus-per-node", f"{why}; access {text}")
        else:
            file.reasons.append(f"{why}: access {text} (options for all jobs belong in policies.directives)")


def _requests_gpus(gres: str) -> bool:
    """Return whether generic resources of Slurm, such as ``gpu:a100:4``, include a GPU."""
    words = gres.partition(",")[0].split(":")
    return words[0] == "gpu" and words[-1] != "0"


def _options(access: Sequence[str]) -> Iterator[tuple[str, str | None, str]]:
    """Yield each option's name, value and text. Supports ``-p gpu``, ``-pgpu`` and ``--partition=gpu``."""
    for one in access:
        try:
            words = shlex.split(one)
        except ValueError:
            words = [one]
        at = 0
        while at < len(words):
            word, value = words[at], None
            text = word
            if word.startswith("--"):
                name, equals, given = word[2:].partition("=")
                value = given if equals else None
            else:
                name, value = word[1:2], word[2:] or None
            if value is None and at + 1 < len(words) and not words[at + 1].startswith("-"):
                at += 1
                value, text = words[at], f"{word} {words[at]}"
            yield name, value, text
            at += 1


def _read_hardware(file: ConfigurationFile, at: tuple[Key, ...], key: str, why: str) -> None:
    """Read the processor and the GPUs. ReFrame counts hardware threads as processors."""
    node, processor = ("node_types", key), (*at, "processor")
    model, target = file.text(*processor, "model"), file.text(*processor, "arch")
    file.carry((*node, "cpu"), model, why)
    known = TARGETS.get(target or "")
    if target and known is None:
        file.reasons.append(f"{why}: processor.arch {clipped(target)} (unknown to archspec)")
    platform = file.text(*processor, "platform")
    file.carry((*node, "arch"), platform or (str(known.family) if known else None), f"{why}, processor {target}")
    if known and known.ancestors:
        file.carry(("spack", "target"), known.name, f"{why}, processor.arch")
    threads = file.number(*processor, "num_cpus_per_core")
    total = file.number(*processor, "num_cpus")
    file.carry((*node, "sockets"), file.number(*processor, "num_sockets"), why)
    if total and threads and total % threads == 0:
        file.carry((*node, "cores"), total // threads, f"{why}: {total} hardware threads")
    elif total:
        file.reasons.append(f"{why}: processor.num_cpus {total} (hardware threads; the threads per core are unknown)")
    file.carry((*node, "threads_per_core"), threads, why)
    gpus = [number for number in file.keys(*at, "devices") if str(file.peek(*at, "devices", number, "type")) == "gpu"]
    if len(gpus) == 1:
        device = (*at, "devices", gpus[0])
        file.take(*device, "type")
        file.carry((*node, "gpus"), file.number(*device, "num_devices") or 1, why)
        file.carry((*node, "gpu_model"), file.text(*device, "model"), why)
        file.carry((*node, "gpu_arch"), file.text(*device, "arch"), why)


def _imply(file: ConfigurationFile, policies: _Policies, name: str, value: str, why: str) -> None:
    """Record what a partition implies for a policy. The first value counts, and others are reported."""
    if policies.setdefault(name, (value, why))[0] != value:
        file.reasons.append(f"{why}: policies.{name} {value} ({policies[name][1]} differs)")


def _read_resource(file: ConfigurationFile, at: tuple[Key, ...], key: str, why: str, policies: _Policies) -> None:
    """Read how a partition requests GPUs and memory."""
    if not _is_texts(file.peek(*at, "options")):
        return
    name = file.peek(*at, "name")
    for option in file.words(*at, "options"):
        form = next((form for form in _RESOURCES if form[0].fullmatch(option)), None)
        if form is None:
            file.reasons.append(f"{why}: resource {name}: {option} (hidl does not request it)")
            continue
        file.take(*at, "name")
        pattern, policy, value = form
        _imply(file, policies, policy, value, f"{why}; resource {option}")
        if (found := pattern.fullmatch(option)) and found["model"]:
            file.carry(("node_types", key, "gpu_model"), found["model"], f"{why}; resource {option}")


def _is_texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def _environments_of(file: ConfigurationFile, system: str, partition: str, names: Sequence[str]) -> Iterator[int]:
    """Yield the indices of a partition's environments: of those with the same name, the one most specific to it."""
    targets = [target.format(system=system, partition=partition) for target in _TARGETS]
    for name in names:
        ranked = [
            (min(targets.index(one) for one in fitting), -number)
            for number in file.keys("environments")
            if str(file.peek("environments", number, "name")) == name
            and (fitting := [one for one in _target_systems(file, number) if one in targets])
        ]
        if ranked:
            yield -min(ranked)[1]


def _target_systems(file: ConfigurationFile, number: int) -> list[str]:
    found = file.peek("environments", number, "target_systems")
    return [str(one) for one in found] if isinstance(found, list) else ["*"]


def _read_environment(file: ConfigurationFile, at: tuple[Key, ...], *, is_used: bool) -> None:
    """Find the MPI library among the modules of an environment."""
    name = str(file.peek(*at, "name"))
    if not is_used:
        file.leave(*at, why="no partition of this draft uses it")
        return
    file.take(*at, "name")
    file.take(*at, "target_systems")
    modules = file.peek(*at, "modules")
    if isinstance(modules, str):
        modules = [modules]
    if not _is_texts(modules):
        return
    libraries = [(one, library_of_module(one)) for one in modules]
    for module, library in libraries:
        if library is not None:
            file.take(*at, "modules")
            why = f"environment {name}, module {module}"
            key: str = library.family
            if any(value.path == ("mpi", key, "modules") and value.value != modules for value in file.values):
                key = simple(f"{key}-{name}") or key
            file.carry(("mpi", key, "family"), library.family, why)
            file.carry(("mpi", key, "version"), library.version, why)
            file.carry(("mpi", key, "modules"), modules, why)
            return
