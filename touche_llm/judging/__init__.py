"""Pointwise judging, stance, and pairs of sentences."""
