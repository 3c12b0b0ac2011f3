"""The bridge to ReFrame: its configuration out of a site, our launchers, its runs, and what they say about the site."""
