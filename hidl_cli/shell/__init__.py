"""``hidl shell``: a shell or a command at the user's terminal, in an allocation, with a stack active."""
