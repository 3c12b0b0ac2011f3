"""Installation inventories: software bills of materials, and audits for published vulnerabilities."""
