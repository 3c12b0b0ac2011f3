"""From a placement to an argv: what the scheduler is asked for, and launchers."""
