"""Stacks on an MPI library that comes as an RPM: unpacked by the user into the stack's prefix, the rest from wheels."""
