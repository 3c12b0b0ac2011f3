"""Who gives the allocation; one module a scheduler, registered by name."""
