"""One rank's part of a training: communicators, messages, actions of a schedule, gradients, update."""
