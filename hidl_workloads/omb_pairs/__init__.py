"""Latency and bandwidth between every two nodes, in rounds in which each node has one partner: ``python -m
hidl_workloads.omb_pairs``."""
