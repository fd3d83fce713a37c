"""Pairs of sentences: how they are made and judged."""
