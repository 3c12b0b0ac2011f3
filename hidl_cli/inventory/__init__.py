"""What installations consist of: software bills of materials, and audits against published vulnerabilities."""
