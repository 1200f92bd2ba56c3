"""Problem families that are generated, not downloaded: the tiny profile."""
