"""Scaling studies: efficiency against a baseline, with an interval and a verdict."""
