"""Engines: what answers requests."""
