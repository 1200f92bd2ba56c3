"""Wiring that reads like the figure in the README."""
