"""The report as one HTML page with charts in SVG."""
