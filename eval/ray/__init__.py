"""The judge on the nodes of a Ray cluster."""
