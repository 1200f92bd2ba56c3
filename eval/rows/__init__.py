"""Rows of published datasets, as files have them, made into problems."""
