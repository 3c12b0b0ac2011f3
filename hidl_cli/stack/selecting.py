"""Which installations a command about several stacks means."""

from __future__ import annotations

from hidl_cli.errors import MissingPrecondition
from hidl_cli.inputs.overlay import find
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack.installation import Installation


def selected(site: Site, prefix: str | None, names: list[str], *, every: bool) -> list[Installation]:
    """Return the installations of the site, or of the named stacks: those in use, or every one.

    ``prefix``: see ``installation.roots``. Raises ``MissingPrecondition`` where one that is in use is damaged, or there
    is none.
    """
    for name in names:
        find("stack", name)
    roots = installation.roots(site, prefix)
    for root in roots:
        for stack in names or [each.name for each in (root / site.name).glob("*")]:
            used = installation.current(root / site.name / stack)
            if used is not None and installation.at(used) is None:
                raise MissingPrecondition(
                    f"the installation {used} is damaged: its manifest or its Python is missing or invalid",
                    hint=f"install it again: {installation.hint(stack, site, root)}",
                )
    found = [
        each
        for root in roots
        for each in installation.list_all(root)
        if each.manifest["site"] == site.name
        and (every or each.is_current)
        and (not names or each.prefix.parent.name in names)
    ]
    missing = [name for name in names if name not in {each.prefix.parent.name for each in found}]
    if missing or not found:
        what = f"stack {missing[0]} is not" if missing else "no stack is"
        hint = (
            installation.hint(missing[0], site, roots[-1]) if missing else "hidl stack list shows what can be installed"
        )
        raise MissingPrecondition(f"{what} installed for site {site.name} in {' or '.join(map(str, roots))}", hint=hint)
    return found
