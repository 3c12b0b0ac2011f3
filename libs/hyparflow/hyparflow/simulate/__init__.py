"""Step times of clusters that are not available: stages, network, stragglers. Imports neither Keras nor TensorFlow."""

from hyparflow.planning.network import NETWORKS, Network
from hyparflow.simulate.library import load
from hyparflow.simulate.scaling import Estimate, estimate
from hyparflow.simulate.simulation import Cluster, Simulation, Stragglers, simulate

__all__ = [
    "NETWORKS",
    "Cluster",
    "Estimate",
    "Network",
    "Simulation",
    "Stragglers",
    "estimate",
    "load",
    "simulate",
]
