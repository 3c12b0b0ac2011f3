"""Schedulers' outputs in the forms that people have at hand, which the probes do not ask for."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from hidl_cli.site.outputs.told import Misread, quoted, table
from hidl_cli.site.probes.columns import heading
from hidl_cli.site.probes.facts import Batch, Hardware, ProbedNode, Queue
from hidl_cli.site.probes.nodelist import listed

_WALL = re.compile(r"(?:([0-9]{1,5})-(?=[0-9]+:[0-9]+:))?(?:([0-9]{1,4}):)?([0-9]{1,2}):([0-9]{2})")
_MARKS = "*~#!%$@^+-"  # what follows a state of Slurm's
_NO_LIMIT = ("infinite", "UNLIMITED", "n/a")
_ALWAYS_THERE = ("AVAIL", "TIMELIMIT", "NODES", "STATE")
_STATES_OF_PARTITIONS = {
    "up": "",
    "down": "its jobs wait, and none starts",
    "drain": "it takes no new jobs",
    "inact": "it takes no new jobs, and starts none",
}
_PBS_HEAD = re.compile(r"^\s*Queue:\s*(\S+)\s*$")
_ATTRIBUTE = re.compile(r"^\s+([A-Za-z][\w.]*)\s*=\s?(.*)$")
_NAME = re.compile(r"^\s*([A-Za-z0-9][\w.-]*(?:\[\d+\])?)\s*$")
_PAIR = re.compile(r"(\S+)/(\S+)")
_ROWS_OF_PBS = re.compile(r"^\s*-{4,}[ -]*$")
_CUT = re.compile(r"[0-9]+:[0-9:]*")
_CUT_WALL = re.compile(r"[0-9]{1,5}-[0-9:]{0,7}|(?:[0-9]{1,4}:){1,2}[0-9]?|inf[init]{0,4}|UNLIM[ITE]{0,3}")


def sinfo(text: str) -> Batch:
    """``sinfo`` with its own columns, and those of ``-l``, ``-N`` and ``-s``.

    Raises ``Misread`` for a row that it would not print.
    """
    printed = table(_without_reasons(text), ["PARTITION"])
    rows = [(number, {_title(key): cell for key, cell in cells.items()}) for number, cells in printed]
    width = next((len(key) for _, cells in printed for key in cells if _title(key) == "TIMELIMIT" != key), None)
    titles = {title for _, cells in rows for title in cells}
    nodes: dict[str, ProbedNode] = {}
    queues: dict[str, Queue] = {}
    for number, cells in rows:
        word = cells.get("PARTITION", "")
        name, limit, available = word.rstrip("*"), cells.get("TIMELIMIT", ""), cells.get("AVAIL", "up")
        if missing := [title for title in _ALWAYS_THERE if title in titles and title not in cells]:
            raise Misread(number, f"a value in the column {missing[0]}", quoted(" ".join(cells.values())))
        if not name or available not in _STATES_OF_PARTITIONS:
            raise Misread(number, "a partition and `up` or `down` in each row", quoted(" ".join(cells.values())))
        wall = _wall(limit) if len(limit) != width else None
        remarks = [f"AVAIL {available}: {_STATES_OF_PARTITIONS[available]}"] if available != "up" else []
        if "TIMELIMIT" in cells and wall is None and limit not in _NO_LIMIT:
            if not _CUT_WALL.fullmatch(limit) and len(limit) != width:
                raise Misread(number, "a time in the column TIMELIMIT", quoted(limit))
            remarks.append(f"TIMELIMIT {quoted(limit)} is cut off: `scontrol show partition` tells it")
        if cells.get("ROOT") == "yes":
            remarks.append("only root may submit to it")
        queues.setdefault(name, Queue(name, word.endswith("*"), max_wall=wall, remarks=tuple(remarks)))
        hosts = listed(cells.get("NODELIST", ""))
        total = cells.get("NODES", cells.get("NODES(A/I/O/T)", "").rpartition("/")[2])
        if total.isdecimal() and "NODELIST" in cells and "..." not in cells["NODELIST"] and str(len(hosts)) != total:
            raise Misread(number, f"{quoted(total)} nodes in NODELIST", str(len(hosts)))
        for host in hosts:
            known = nodes.get(host)
            its = known.queues if known else ()
            nodes[host] = ProbedNode(host, _hardware(cells), queues=tuple(dict.fromkeys((*its, name))))
    states = Counter(cells["STATE"] for _, cells in rows if cells.get("STATE", "").rstrip(_MARKS) in ("down", "drain"))
    remarks = ["some nodes are down or drained, and are counted all the same"] if states else []
    return Batch("slurm", nodes=tuple(nodes.values()), queues=tuple(queues.values()), remarks=tuple(remarks))


def _title(word: str) -> str:
    """The title of a column that is too narrow for it (``TIMELI``)."""
    whole = [title for title in ("TIMELIMIT", "NODELIST", "STATE", "AVAIL") if title.startswith(word)]
    return whole[0] if len(whole) == 1 and len(word) >= 3 else word


def _without_reasons(text: str) -> str:
    """The table without the words in its last column, which may be several (REASON)."""
    lines = text.splitlines()
    at = heading(lines, "PARTITION")
    titles = lines[at].split() if at is not None else []
    if not titles or titles[-1] != "REASON":
        return text
    return "\n".join(
        " ".join(line.split()[: len(titles)]) if len(line.split()) > len(titles) else line for line in lines
    )


def _hardware(cells: Mapping[str, str]) -> Hardware:
    """What ``sinfo -Nl`` tells: a sign after a number means that some nodes have more."""
    shape = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4}):([0-9]{1,3})", cells.get("S:C:T", ""))
    memory, processors = cells.get("MEMORY", ""), cells.get("CPUS", "")
    return Hardware(
        sockets=int(shape[1]) or None if shape else None,
        cores=int(shape[1]) * int(shape[2]) or None if shape else None,
        threads_per_core=int(shape[3]) or None if shape else None,
        memory_mib=int(memory) if re.fullmatch(r"[0-9]{2,10}", memory) else None,
        processors=int(processors) or None if processors.isdecimal() and len(processors) < 8 and not shape else None,
    )


def _wall(text: str) -> str | None:
    """A time of Slurm's: ``30:00`` are minutes."""
    found = _WALL.fullmatch(text)
    if found is None:
        return None
    clock = f"{int(found[2] or 0):02}:{int(found[3]):02}:{found[4]}"
    return f"{found[1]}-{clock}" if found[1] else clock


def bqueues(text: str) -> Batch:
    """``bqueues`` without options: names, states and numbers of slots.

    Raises ``Misread`` for a row that it would not print.
    """
    found = []
    for number, cells in table(text, ["QUEUE_NAME", "STATUS"], ["NJOBS", "PEND", "RUN"]):
        if "QUEUE_NAME" not in cells or "STATUS" not in cells:
            raise Misread(number, "a queue and its status in each row", quoted(" ".join(cells.values())))
        remarks = [f"STATUS {cells['STATUS']}"] if cells["STATUS"] != "Open:Active" else []
        if cells.get("MAX", "-").isdecimal():
            remarks.append(f"MAX {cells['MAX']}: slots in use")
        found.append(Queue(cells["QUEUE_NAME"], remarks=tuple(remarks)))
    return Batch("lsf", queues=tuple(found))


def gpus_of_lsf(text: str) -> Batch:
    """``bhosts -gpu`` and ``lshosts -gpu``: a row for each GPU, of which the first alone names the host.

    Raises ``Misread`` for a row without a number and a model.
    """
    found: dict[str, list[str]] = {}
    host = ""
    lines = text.splitlines()
    at = heading(lines, "HOST_NAME")
    for number, line in enumerate(lines[at + 1 :] if at is not None else [], start=(at or 0) + 2):
        words = line.split()
        if not words:
            continue
        if not line[0].isspace():
            host, *words = words
        if not host or len(words) < 2 or not words[0].isdecimal():
            raise Misread(number, "a host, and the number and the model of a GPU", quoted(line.strip()))
        found.setdefault(host, []).append(words[1])
    if not found:
        raise Misread(0, "a row for each GPU", "none")
    nodes = [
        ProbedNode(name, Hardware(gpus=len(models), gpu_model=", ".join(dict.fromkeys(models))))
        for name, models in found.items()
    ]
    return Batch("lsf", nodes=tuple(nodes), remarks=("hosts without GPUs are not among these",))


def pbs_queues(text: str) -> Mapping[str, Any]:
    """The document of ``qstat -Q -f -F json`` from the text of ``qstat -Q -f``.

    Raises ``Misread`` for a line that belongs to none.
    """
    return {"Queue": dict(_blocks(text, _PBS_HEAD))}


def pbs_server(text: str) -> Mapping[str, Any]:
    """The document of ``qstat -B -f -F json`` from the text of ``qstat -B -f``; ``Misread`` too."""
    servers = dict(_blocks(text, re.compile(r"^\s*Server:\s*(\S+)\s*$")))
    version = next((each["pbs_version"] for each in servers.values() if "pbs_version" in each), None)
    return {"Server": servers, "pbs_version": version}


def pbs_nodes(text: str) -> Mapping[str, Any]:
    """The document of ``pbsnodes -a -F json`` from the text of ``pbsnodes -a``, PBS's or Torque's; ``Misread`` too."""
    nodes = dict(_blocks(text, _NAME))
    for node in nodes.values():
        status = dict(part.split("=", 1) for part in str(node.pop("status", "")).split(",") if "=" in part)
        if "np" in node:  # Torque's
            memory = {"mem": status["physmem"]} if "physmem" in status else {}
            cards = {"ngpus": node["gpus"]} if "gpus" in node else {}
            node["resources_available"] = {"ncpus": node["np"], **memory, **cards}
    return {"nodes": nodes}


def _blocks(text: str, head: re.Pattern[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Blocks of attributes below a name; what is longer than a line goes on in the next, which is indented further."""
    name, about, last = "", dict[str, Any](), ""
    attribute_indent = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if found := head.match(line):
            if name:
                yield name, _nested(about)
            name, about, last = found[1], {}, ""
        elif not line.strip():
            continue
        elif not name:
            raise Misread(number, "the name of a node, queue or server", quoted(line))
        else:
            indent = len(line.expandtabs()) - len(line.expandtabs().lstrip())
            attribute = _ATTRIBUTE.match(line)
            if attribute and not (last and indent > attribute_indent):
                last, attribute_indent = attribute[1], indent
                about[last] = attribute[2]
            elif last and indent > 0:
                about[last] += line.strip()
            else:
                raise Misread(number, "an attribute and its value", quoted(line))
    if name:
        yield name, _nested(about)


def _nested(about: Mapping[str, str]) -> dict[str, Any]:
    """``resources_max.walltime`` as it stands in a document: ``walltime`` in ``resources_max``."""
    found: dict[str, Any] = {}
    for key, value in about.items():
        group, dot, name = key.partition(".")
        if dot and isinstance(found.setdefault(group, {}), dict):
            found[group][name] = value.strip()
        elif not dot:
            found.setdefault(key, value.strip())
    return found


def pbs_node_table(text: str) -> Mapping[str, Any]:
    """The document of ``pbsnodes -a -F json`` from ``pbsnodes -aSj``, in which numbers are ``free/total``.

    Raises ``Misread`` for a row that it would not print.
    """
    nodes: dict[str, Any] = {}
    for number, words in _pbs_rows(text, "vnode", "state", "njobs"):
        pairs = [found for word in words[5:9] if (found := _PAIR.fullmatch(word))]
        if len(pairs) != 4:
            raise Misread(number, "mem, ncpus, nmics and ngpus as free/total", quoted(" ".join(words)))
        total = [pair[2] for pair in pairs]
        if not re.fullmatch(r"[0-9]+[kmgtp]?b", total[0]) or not all(one.isdecimal() for one in total[1:]):
            raise Misread(number, "sizes and numbers after each /", quoted(" ".join(words[5:9])))
        resources = {"mem": total[0], "ncpus": total[1], "ngpus": total[3]}
        nodes[words[0]] = {"state": words[1], "resources_available": resources}
    return {"nodes": nodes}


def pbs_queue_table(text: str) -> Mapping[str, Any]:
    """The document of ``qstat -Q -f -F json`` from ``qstat -q``; a time that is cut off is left out.

    Raises ``Misread`` for a row that it would not print.
    """
    queues: dict[str, Any] = {}
    for number, words in _pbs_rows(text, "Queue", "Memory", "Walltime"):
        if len(words) < 5:  # the sums at its end
            continue
        if len(words) != 10 or words[8] not in "ED" or words[9] not in "RS":
            raise Misread(
                number, "a queue, its limits, numbers of jobs, and a state such as `E R`", quoted(" ".join(words))
            )
        wall, nodes = words[3], words[4]
        if wall != "--" and not _CUT.fullmatch(wall):
            raise Misread(number, "a time in the column Walltime", quoted(wall))
        limits = {} if wall == "--" else {"walltime": wall}
        limits |= {"nodect": nodes} if nodes.isdecimal() else {}
        queues[words[0]] = {
            "queue_type": "Execution",
            "enabled": str(words[8] == "E"),
            "started": str(words[9] == "R"),
            "resources_max": limits,
        }
    return {"Queue": queues}


def _pbs_rows(text: str, *titles: str) -> Iterator[tuple[int, list[str]]]:
    """The rows below these titles: the number of the line, counted from 1, and its words.

    Raises ``Misread`` where there are no such titles.
    """
    lines = text.splitlines()
    at = heading(lines, *titles)
    if at is None:
        raise Misread(0, f"a line with the titles {', '.join(titles[:-1])} and {titles[-1]}", "none")
    for number, line in enumerate(lines[at + 1 :], start=at + 2):
        if line.strip() and not _ROWS_OF_PBS.match(line):
            yield number, line.split()


def document(text: str) -> Mapping[str, Any]:
    """The JSON that a command of PBS printed; ``Misread`` where it is none, or no object."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise Misread(error.lineno, "JSON", f"{error.msg} in column {error.colno}") from None
    except (ValueError, RecursionError):
        raise Misread(0, "JSON", "a number of too many digits, or too many nested values") from None
    if not isinstance(found, dict):
        raise Misread(1, "a JSON object", quoted(text))
    return found


def rows_fit(text: str, *titles: str, numbers: tuple[str, ...] = ()) -> str:
    """The text, once each row below these titles is seen to fit; raises ``Misread``."""
    table(text, titles, numbers)
    return text


def states(nodes: Mapping[str, Any]) -> str:
    """``2 offline, 1 free``: how many nodes of a PBS document are in which state."""
    found = Counter(str(node.get("state", "?")) for node in nodes.values() if isinstance(node, Mapping))
    return ", ".join(f"{number} {state}" for state, number in found.most_common(6))
