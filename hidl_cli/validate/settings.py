"""Generate ReFrame's configuration from a site's scheduler, launchers, partitions and installed stacks."""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hidl_cli import batch_systems
from hidl_cli.errors import InvalidInput
from hidl_cli.inputs.overlay import list_all
from hidl_cli.launch.placement import Placement, allocate
from hidl_cli.plan.checks import load_workload
from hidl_cli.plan.devices import default_launcher, reason_not_runnable
from hidl_cli.quoting import sh
from hidl_cli.schedulers import scheduler_for
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import NodeType, Site
from hidl_cli.stack import installation
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.installation import Installation
from hidl_cli.validate.bridge import CheckLocation
from hidl_cli.validate.reframe import (
    accounting_answers,
    allowed_scales,
    directories,
    name_in_reframe,
    scheduler_in_reframe,
)
from hidl_cli.validate.reframe import register_backends as register

_JOBS_AT_ONCE = 8
_MODULES = {"lmod": "LMOD_CMD", "tmod4": "MODULES_CMD"}


def configuration(
    site: Site,
    location: CheckLocation,
    *,
    partitions: Sequence[str],
    stacks: Iterable[Installation],
    jobs: int | None = None,
    accounting: bool = False,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return ReFrame's configuration for a site.

    A site without partitions gets a single partition, ``default``, for jobs that do not request one.

    Args:
        site: Site to configure.
        location: Options for all partitions' jobs.
        partitions: Names of the partitions.
        stacks: Installed stacks, which become environments.
        jobs: Maximum number of concurrent jobs. The default is one on a local machine, where jobs would disturb each
            other.
        accounting: Whether sacct works. Otherwise, ReFrame uses squeue.
        environ: Environment variables used to detect the module system.

    Raises:
        InvalidInput: If the site cannot run jobs.
        UsageError: If the site does not allow an option.
    """
    scheduler_for(site)
    if reason := reason_not_runnable(site):
        raise InvalidInput(
            f"site {site.name}: {reason}", hint=f"see the site's definition with: hidl site show {site.name}"
        )
    environments = {stack.prefix.parent.name: stack for stack in stacks}
    partition_names: Sequence[str | None] = partitions or [None]
    names = [word(name) for name in environments]
    system = {
        "name": word(site.name),
        "descr": site.title,
        "hostnames": [".*"],
        "modules_system": _modules_system(environ or {}),
        "max_local_jobs": jobs or 1,
        "partitions": [
            _partition(site, replace(location, partition=name), names, jobs=jobs, accounting=accounting)
            for name in partition_names
        ],
    }
    modules = _modules(site) if system["modules_system"] != "nomod" else []
    return {
        "systems": [system],
        "environments": [_environment(name, stack, modules) for name, stack in environments.items()],
        "logging": [_LOGGING],
    }


def plain(name: str | None) -> dict[str, Any]:
    """Return a site's configuration with all of its partitions, for using ReFrame without ``hidl validate``.

    ``name`` defaults to the detected site.
    """
    site = load_site(name)
    register(site)
    return configuration(
        site,
        CheckLocation(site=name or site.name),
        partitions=list(site.partitions),
        stacks=installation.in_use(site),
        accounting=accounting_answers(site),
        environ=os.environ,
    )


def word(name: str) -> str:
    """Convert a name to a form that ReFrame accepts: letters, digits, ``_`` and ``-``, not starting with a digit."""
    plain_name = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return plain_name if re.match(r"[A-Za-z_]", plain_name) else f"_{plain_name}"


def _partition(
    site: Site, location: CheckLocation, environments: Sequence[str], *, jobs: int | None, accounting: bool
) -> dict[str, Any]:
    node = site.node_type(location.partition)
    local = site.scheduler == "local"
    access, processor, devices = _access(site, location), _processor(node), _devices(node)
    return {
        "name": word(location.partition or "default"),
        "scheduler": scheduler_in_reframe(site, accounting),
        "launcher": name_in_reframe(default_launcher(site)),
        "environs": list(environments),
        "max_jobs": jobs or (1 if local else _JOBS_AT_ONCE),
        "features": traits(site, location.partition),
        "extras": location.extras(),
        **({"access": access} if access else {}),
        **({"processor": processor} if processor else {}),
        **({"devices": devices} if devices else {}),
    }


def traits(site: Site, partition: str | None) -> list[str]:
    """Return the features by which checks select a partition (``valid_systems = ["+gpu"]``)."""
    node, scales = site.node_type(partition), allowed_scales(site, partition)
    found = ["mpi"]
    found += ["gpu"] if node.gpus else ["cpu"] if node.gpus == 0 else []
    found += ["multi-node"] if any(scale.nodes > 1 for scale in scales.values()) else []
    found += ["batch"] if site.scheduler != "local" else []
    found += [word(node.arch)] if node.arch else []
    return found + [f"scale-{name}" for name in scales]


def _access(site: Site, location: CheckLocation) -> list[str]:
    """Return the options that request the partition, in the form that the site's policies require."""
    partition = site.partition(location.partition)
    nodes = partition.min_nodes if partition else 1
    placement = Placement(nodes=nodes, ranks_per_node=1, ranks=nodes, threads_per_rank=1, bind=False)
    allocation = allocate(site, "hidl", [placement], location.job)
    lines = scheduler_for(site).header(allocation, site.policies)
    system = batch_systems.system(site.scheduler)
    if system is None:
        return []
    found = [line for line in lines if re.match(system.access, line)]
    return found if system.reframe is None else [line.split(maxsplit=1)[1] for line in found]


def _processor(node: NodeType) -> dict[str, Any]:
    threads = node.threads_per_core or 1
    facts: dict[str, Any] = {
        "arch": node.arch,
        "model": node.cpu,
        "num_cpus": node.cores * threads if node.cores else None,
        "num_cpus_per_core": node.threads_per_core,
        "num_cpus_per_socket": node.cores * threads // node.sockets if node.cores and node.sockets else None,
        "num_sockets": node.sockets,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _devices(node: NodeType) -> list[dict[str, Any]]:
    if not node.gpus:
        return []
    facts = {"type": "gpu", "arch": node.gpu_arch, "model": node.gpu_model, "num_devices": node.gpus}
    return [{key: value for key, value in facts.items() if value is not None}]


def _environment(name: str, stack: Installation, modules: Sequence[str]) -> dict[str, Any]:
    """Return a stack as an environment. Activating it puts its compiler wrappers and Python first on PATH."""
    packages = [word(package) for package in stack.manifest["packages"]]
    return {
        "name": word(name),
        "modules": list(modules),
        "prepare_cmds": [f"source {sh(str(stack.activate))}"],
        "features": sorted(packages),
        "extras": {"prefix": str(stack.prefix), "lock": stack.lock},
    }


def _modules(site: Site) -> list[str]:
    library = site.mpi.get(site.default_mpi or "")
    return [*site.policies.modules, *(library.modules if library else [])]


def _modules_system(environ: Mapping[str, str]) -> str:
    for system, variable in _MODULES.items():
        if variable in environ and (shutil.which(environ[variable]) or Path(environ[variable]).exists()):
            return system
    return "nomod"


_LOGGING: dict[str, Any] = {
    "level": "debug",
    "handlers": [
        {"type": "stream", "name": "stdout", "level": "info", "format": "%(message)s"},
    ],
    "handlers_perflog": [
        {
            "type": "filelog",
            "prefix": "%(check_system)s/%(check_partition)s",
            "level": "info",
            "format": "%(check_job_completion_time)s|%(version)s|%(check_display_name)s|%(check_system)s|"
            "%(check_partition)s|%(check_environ)s|%(check_hidl_run)s|%(check_result)s|%(check_perfvalues)s",
            "format_perfvars": "%(check_perf_var)s=%(check_perf_value)s %(check_perf_unit)s|",
            "append": True,
        }
    ],
}


# The stacks that checks use.


def of_checks() -> tuple[str, ...]:
    """Return the stacks of all workloads that appear in the check files, with the smallest first.

    The files are only parsed, because running ReFrame would take seconds.
    """
    known = {entry.name for entry in list_all("workload")}
    names = sorted(known & {text for directory in directories() for text in _strings(directory)})
    used = {choice.stack for name in names for choice in load_workload(name).stacks}
    stacks = {name: load_stack(name) for name in used}
    return tuple(sorted(stacks, key=lambda name: (len(stacks[name].builds), len(stacks[name].packages), name)))


def _strings(directory: Path) -> set[str]:
    """Return all strings in the Python files of a directory, ignoring files that cannot be parsed."""
    found: set[str] = set()
    for file in sorted(directory.glob("*.py")):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
        found |= {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return found
