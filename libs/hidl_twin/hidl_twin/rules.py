"""Submit filter of a twin's Slurm, in Lua: the site's rules beside the limits of partitions."""

from __future__ import annotations

from hidl_cli.templates import render_lua
from hidl_twin import TEMPLATES
from hidl_twin.dress import Dress


def job_submit(dress: Dress, *, enforce_limits: bool) -> str:
    """Render ``job_submit.lua``. ``enforce_limits``: reject jobs that exceed limits, else leave them pending."""
    default = next((queue.name for queue in dress.queues if queue.default), dress.queues[0].name)
    values = {
        "rules": dress.rules or {},
        "limits": dress.limits,
        "default": default,
        "enforce_limits": enforce_limits,
    }
    return render_lua("job_submit.lua.j2", values, TEMPLATES)
