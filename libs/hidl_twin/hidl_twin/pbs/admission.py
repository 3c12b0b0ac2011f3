"""What PBS, or a hook of the site, refuses when a job is submitted."""

from __future__ import annotations

from dataclasses import replace

from hidl_twin.batch.settings import Settings
from hidl_twin.batch.store import Job, refuse
from hidl_twin.pbs import options

_REQUIRED = {"A": "No active allocation found for project and resource", "walltime": "walltime is required"}
_LIMITS = "qsub: Job violates queue and/or server resource limits"


def admit(job: Job, settings: Settings) -> Job:
    """The job with its queue, its nodes and its run limit; ends the program for one that is refused."""
    given = dict(job.options)
    resources = options.resources(given)
    for option in settings.required:
        letter = option.lstrip("-").partition(" ")[0]
        if not (given.get(letter) if letter != "l" else resources.get(option.partition(" ")[2])):
            reason = _REQUIRED.get(option.partition(" ")[2] or letter, f"{option} is required")
            refuse(f"qsub: Request rejected.  Reason: {reason}", 32)
    name = given.get("q", settings.default_queue or "")
    queue = settings.queues.get(name)
    if queue is None:
        refuse("qsub: Unknown queue" if name else "qsub: No default queue specified", 170)
    select = resources.get("select", "1:ncpus=1")
    nodes = sum(count for count, _ in options.chunks(select))
    if nodes < queue.min_nodes or (queue.max_nodes is not None and nodes > queue.max_nodes):
        refuse(_LIMITS, 188)
    longest = queue.run_limit(nodes)
    asked = options.seconds(resources["walltime"]) / 60 if "walltime" in resources else longest
    if longest is not None and asked is not None and asked > longest:
        refuse(_LIMITS, 188)
    have = len(queue.hosts or settings.hosts)
    if settings.hosts and nodes > have:
        refuse(
            f"qsub: {nodes} nodes are within the limits of {settings.cluster}, but queue {name} of this twin has "
            f"{have}: hidl cluster up --nodes {nodes}",
            188,
        )
    return replace(job, options=given, queue=name, nodes=nodes, run_limit=asked)
