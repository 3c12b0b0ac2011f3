"""One rank's part of a training: communicators, messages, the actions of a schedule, gradients, the update."""
