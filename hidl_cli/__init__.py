"""Install, launch and validate deep-learning and data-science stacks over MPI."""

__version__ = "0.1.0"
