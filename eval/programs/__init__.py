"""Test suites, and the verdict on a program."""
