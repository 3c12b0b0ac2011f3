"""From a placement to an argv: launchers, job script."""
