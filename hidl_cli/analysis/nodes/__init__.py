"""Slow nodes and slow links."""
