"""``hidl validate``: run ReFrame checks on a site, with a configuration generated from the site file."""
