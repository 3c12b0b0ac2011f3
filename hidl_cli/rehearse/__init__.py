"""The three lines of a site, rehearsed on its twin."""
