"""Twins of sites on one machine: a real Slurm, or a stand-in for LSF, PBS or Flux, on nodes that are namespaces.

A process of a twin is found by its mark, the twin's directory and key in its environment, and never by a pid file: so
``down`` finds it even if ``up`` was killed.
"""

from pathlib import Path

__version__ = "0.1.0"

TEMPLATES = Path(__file__).with_name("templates")
"""The Jinja2 templates of scripts and configuration files."""
