"""The processes of a training stage."""
