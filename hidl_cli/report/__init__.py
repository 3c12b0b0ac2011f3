"""The report: one HTML page that shows what runs yielded, how they were judged, and since when it is so."""
