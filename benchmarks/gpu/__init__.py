"""What hidl does on GPUs, tried on the real ones of this machine, without a network and without hidl installed."""
