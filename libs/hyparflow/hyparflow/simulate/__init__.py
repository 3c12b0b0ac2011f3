"""Step times at scales that cannot be run: stages, network, stragglers. Imports neither Keras nor TensorFlow."""
