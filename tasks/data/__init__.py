"""From sources to clean problems."""
