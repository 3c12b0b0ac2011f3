"""Is one set of runs different from another, and when did a metric change?"""
