"""``hidl validate``: run ReFrame checks on a site, using a configuration generated from the site file."""
