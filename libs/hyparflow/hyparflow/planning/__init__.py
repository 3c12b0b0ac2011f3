"""Which partition computes what, what that costs, and the plan that says so."""
