"""Benchmarks and their metrics."""
