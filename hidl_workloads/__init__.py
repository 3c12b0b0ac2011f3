"""Programs that run inside jobs; they import only what their stack installs."""

__version__ = "0.1.0"
