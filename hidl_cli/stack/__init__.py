"""Stacks: schema, plan, lock, installation."""
