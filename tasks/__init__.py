"""Stages: one file each, pure functions first, the @stage last."""
