"""Inventories of installations: software bills of materials, and audits for published vulnerabilities."""
