"""Rules on the launchers that were tried on the nodes, and on ssh between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from hidl_cli.doctor.nodes.facts import TIMED_OUT, JobFacts, Ssh, Tried
from hidl_workloads.doctor import node, nodes, ranks
from hidl_workloads.doctor.finding import Evidence, Finding, Rules
from hidl_workloads.doctor.ranks import World

RULES: Rules[JobFacts] = Rules()

_SAID = 300


def find_on_nodes(facts: JobFacts) -> list[Finding]:
    """The findings about nodes, each by itself and compared."""
    return [
        *nodes.RULES.findings(facts.nodes),
        *(finding for each in facts.nodes.nodes for finding in node.RULES.findings(each)),
    ]


def find_in_launches(facts: JobFacts) -> list[Finding]:
    """The findings about launches, ssh, and the worlds that started.

    A type of ``srun --mpi`` that hidl would not use is reported only if it gives singletons, as an info.
    """
    found = RULES.findings(facts)
    for tried in facts.tried:
        judged = ranks.RULES.findings(_world(tried, facts)) if tried.ranks or tried.began else []
        if tried.attempt.usual:
            found += judged
        else:
            found += [replace(each, severity="info") for each in judged if each.rule == "HD001"]
    return found


@RULES.rule(
    "HD006",
    "ssh to a node requires a password",
    severity="error",
    why="mpirun_rsh, and Hydra and PRRTE outside a scheduler, start their processes with ssh from the job's first "
    "node. If it prompts, or no sshd listens, the launch fails or hangs.",
)
def no_ssh(facts: JobFacts) -> Iterator[Evidence]:
    """``ssh -o BatchMode=yes`` from the first node to each other one."""
    for each in facts.ssh:
        if each.status != 0:
            said = each.said.splitlines()[-1][:_SAID] if each.said else f"ssh exited with status {each.status}"
            yield Evidence(f"from {each.source}: {said}", _fix_ssh(each), each.target)


@RULES.rule(
    "HD052",
    "A launcher does not start the ranks",
    severity="error",
    why="Every run that uses it fails, or hangs until its time limit.",
)
def no_start(facts: JobFacts) -> Iterator[Evidence]:
    """A launch that hidl would use failed, timed out, or not all of its ranks reported."""
    for tried in facts.tried:
        attempt = tried.attempt
        missing = attempt.ranks - len(tried.ranks)
        if not attempt.usual or tried.status is None or (tried.status == 0 and missing <= 0):
            continue
        how = f"exited with status {tried.status}"
        if tried.status in TIMED_OUT:
            how = "timed out"
        elif tried.status == 0:
            how = f"exited with status 0, but {missing} of {attempt.ranks} ranks did not report"
        if tried.began:
            how += f"; {len(tried.began)} rank(s) did not return from MPI_Init"
        words = [line.strip() for line in tried.said.splitlines() if re.search("[a-z]", line)]  # not what frames them
        last = " | ".join(words[-3:])
        yield Evidence(f"{how}; output: {last[-_SAID:] or 'none'}", _fix_start(tried, facts), attempt.words)


def _world(tried: Tried, facts: JobFacts) -> World:
    """The ranks of one launch, for the rules of ranks."""
    boots = {node.host: node.boot for node in facts.nodes.nodes if node.boot}
    outside = facts.nodes.outside
    if outside is not None and outside.boot:
        boots[outside.host] = outside.boot
    return World(
        tried.ranks or tried.began,
        expected=tried.attempt.ranks if tried.ranks else None,
        cores_per_rank=tried.attempt.cores_per_rank,
        launch=tried.attempt.words,
        instead=_instead(tried, facts),
        boots=boots,
    )


def _instead(tried: Tried, facts: JobFacts) -> tuple[str, ...]:
    """The other launches that succeeded."""
    return tuple(
        other.attempt.words
        for other in facts.tried
        if other is not tried
        and other.status == 0
        and len(other.ranks) == other.attempt.ranks
        and all(rank.size == other.attempt.ranks for rank in other.ranks)
    )


def _fix_start(tried: Tried, facts: JobFacts) -> str:
    broken = dict.fromkeys(each.where for each in find_on_nodes(facts) if each.severity == "error" and each.where)
    if broken:
        return f"first fix {', '.join(filter(None, broken))}"
    instead = _instead(tried, facts)
    return f"use one that works: {', '.join(instead)}" if instead else "check its output; try another --launcher"


def _fix_ssh(each: Ssh) -> str:
    said = each.said.lower()
    if "host key" in said:
        return f"ssh-keyscan {each.target} >> ~/.ssh/known_hosts (or the cluster's /etc/ssh/ssh_known_hosts)"
    if "permission denied" in said:
        return "ssh-keygen -t ed25519 -N '' && cat ~/.ssh/id_ed25519.pub >> ~/.ssh/authorized_keys"
    if each.status in TIMED_OUT or "timed out" in said or "refused" in said:
        return f"on {each.target}: systemctl status sshd; meanwhile --launcher srun, or --exclude={each.target}"
    return f"ssh -v -o BatchMode=yes {each.target} true, from {each.source}"
