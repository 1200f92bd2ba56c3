"""Exact and near-duplicate prompts."""
