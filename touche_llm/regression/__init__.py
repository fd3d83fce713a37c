"""Runs that are kept as tests: recorded small, replayed offline, compared, and told what changed."""
