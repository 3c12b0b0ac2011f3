"""Step times at scales that cannot be run: stages, network, stragglers. Imports neither Keras nor TensorFlow."""

from hyparflow.simulate.network import NETWORKS, Network
from hyparflow.simulate.stragglers import Stragglers

__all__ = ["NETWORKS", "Network", "Stragglers"]
