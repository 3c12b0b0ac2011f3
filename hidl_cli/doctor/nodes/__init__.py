"""Examine compute nodes with one short job: its plan, its facts, and the rules on launches."""
