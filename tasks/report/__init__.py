"""The report of a run, and the pages beside each result."""
