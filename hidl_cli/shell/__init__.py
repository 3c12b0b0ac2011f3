"""``hidl shell``: a shell or a command at the user's terminal, in an allocation and with an active stack."""
