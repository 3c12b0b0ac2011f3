"""Published results that studies are compared with."""
