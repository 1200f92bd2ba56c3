"""Word n-grams shared with benchmarks."""
