"""Rules over what hidl sees from outside a job; one subject a file."""
