"""Engines: the ways in which requests reach a model."""
