"""Read Benchpark's description of a system: its YAML files, or its ``system.py``, which is not executed."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from hidl_cli.errors import InvalidInput, UsageError
from hidl_cli.inputs.problems import clipped
from hidl_cli.site.configurations.carried import ANY_NODES, ConfigurationFile
from hidl_cli.site.draft import simple

_SCHEDULERS = ("slurm", "lsf", "pbs", "flux")
_CODE = "computed by the program; `benchpark system init` writes it to YAML files"
_PLACEHOLDER = "a value for benchmarks, not for the site"
_KEYS = {
    "cores": ("sys_cores_per_node", "sys_cpus_per_node"),
    "sockets": ("sys_sockets_per_node",),
    "gpus": ("sys_gpus_per_node",),
    "memory_gib": ("sys_mem_per_node", "sys_mem_per_node_GB"),
    "gpu_memory_gib": ("sys_gpu_mem_GB",),
}
_OF_BENCHMARKS = ("n_ranks", "n_nodes", "batch_submit", "mpi_command", "timeout", "max_request", "gtl_flag")


def parse_system(name: str, text: str) -> dict[str, Any]:
    """Return the constants in a ``system.py``, by name of the system's attribute or of the cluster.

    Raises ``InvalidInput`` if it is not a Python program or too deeply nested.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidInput(f"{name} is not a Python program: {clipped(str(error), 200)}") from error
    found: dict[str, Any] = {"variables": {}, "resources": {}, "code": {}}
    for statement in (one for kind in tree.body if isinstance(kind, ast.ClassDef) for one in kind.body):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "id_to_resources":
            found["resources"] |= _constants(statement.value)
        elif isinstance(statement, ast.FunctionDef) and statement.name in ("__init__", "initialize"):
            for line in statement.body:
                target = line.targets[0] if isinstance(line, ast.Assign) else None
                if isinstance(line, ast.Assign) and isinstance(target, ast.Attribute):
                    found["variables"][target.attr] = _constant(line.value)
        elif isinstance(statement, ast.FunctionDef):
            found["code"][statement.name] = "..."
    return found


def read_system(file: ConfigurationFile, wanted: str | None) -> None:
    """Read the constants of a ``system.py``."""
    clusters = [str(key) for key in file.keys("resources")]
    chosen = clusters[0] if len(clusters) == 1 else wanted if wanted in clusters else None
    if clusters and chosen is None:
        raise UsageError(
            f"{file.name} describes several systems: {', '.join(map(clipped, clusters))}",
            hint=f"select one, for example: hidl site new {simple(clusters[0]) or 'NAME'} --from {file.name}",
        )
    for cluster in clusters:
        if cluster != chosen:
            file.leave("resources", cluster, why=f"this draft is for {chosen}")
    file.cluster = simple(chosen or "") or None
    if chosen:
        _read_variables(file, ("resources", chosen))
    _read_variables(file, ("variables",))
    for name in file.keys("code"):
        file.leave("code", name, why=_CODE)


def read_variables(file: ConfigurationFile, wanted: str | None) -> None:
    """Read ``variables.yaml``: the scheduler and the size of a node."""
    del wanted
    _read_variables(file, ("variables",))


def read_definition(file: ConfigurationFile, wanted: str | None) -> None:
    """Read ``system_definition.yaml``: the models of processors, GPUs and the network."""
    del wanted
    at = ("system_definition",)
    if name := file.text(*at, "name"):
        file.cluster = simple(name) or None
        site = file.text(*at, "site")
        file.carry(("title",), f"{name} ({site})" if site else name, "name and site")
    node = ("node_types", ANY_NODES)
    for key, kind in (("cpu", "processor"), ("gpu_model", "accelerator")):
        words = [file.text(*at, kind, "vendor"), file.text(*at, kind, "name")]
        file.carry((*node, key), " ".join(filter(None, words)), kind)
    file.carry((*node, "arch"), file.text(*at, "processor", "ISA"), "processor.ISA")
    file.carry(("spack", "target"), file.text(*at, "processor", "uArch"), "processor.uArch")
    file.carry((*node, "gpu_arch"), file.text(*at, "accelerator", "uArch"), "accelerator.uArch")
    words = [file.text(*at, "interconnect", "vendor"), file.text(*at, "interconnect", "name")]
    file.carry(("interconnect",), " ".join(filter(None, words)), "interconnect")


def read_id(file: ConfigurationFile, wanted: str | None) -> None:
    """Read ``system_id.yaml``, which names the system."""
    del wanted
    file.cluster = simple(file.text("system", "name") or "") or None


def read_software(file: ConfigurationFile, wanted: str | None) -> None:
    """Read ``software.yaml``: the default compiler and the default MPI library."""
    del wanted
    for key, name in (("default_compiler", "default-compiler"), ("default_mpi", "default-mpi")):
        at = ("software", "packages", name, "pkg_spec")
        if spec := file.text(*at):
            file.carry((key,), spec, f"{name}: {spec}")


def _read_variables(file: ConfigurationFile, at: tuple[str, ...]) -> None:
    if file.peek(*at, "scheduler") in _SCHEDULERS:
        file.carry(("scheduler",), file.text(*at, "scheduler"), "scheduler")
    for key, names in _KEYS.items():
        for name in names:
            file.carry(("node_types", ANY_NODES, key), file.number(*at, name), name)
    for name in ("rocm_arch", "gpu_arch"):
        file.carry(("node_types", ANY_NODES, "gpu_arch"), file.text(*at, name), name)
    if arch := file.text(*at, "cuda_arch"):
        file.carry(("node_types", ANY_NODES, "gpu_arch"), f"sm_{arch}", "cuda_arch")
    if queue := file.text(*at, "queue"):
        file.carry(("partitions", simple(queue), "node_type"), ANY_NODES, "queue")
        file.carry(("partitions", simple(queue), "queue"), queue if queue != simple(queue) else None, "queue")
    for name in _OF_BENCHMARKS:
        file.leave(*at, name, why=_PLACEHOLDER)


def _constants(node: ast.expr) -> dict[str, Any]:
    """Return the constants in a dictionary of dictionaries."""
    if not isinstance(node, ast.Dict):
        return {}
    return {
        str(key.value): _constants(value) if isinstance(value, ast.Dict) else _constant(value)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
    }


def _constant(node: ast.expr) -> Any:
    """Return the value of a constant, or the text of an expression."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return f"<{ast.unparse(node)[:100]}>"


def is_system(file: Path, text: str) -> bool:
    """Return whether a Python file is a Benchpark system definition."""
    return file.name == "system.py" or "benchpark.system" in text
