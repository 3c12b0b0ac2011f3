"""Probes of the doctor: each asks about one subject and returns facts, None where it learnt nothing."""
