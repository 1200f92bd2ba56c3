"""Ablations as flows."""
