"""Recorded runs as regression tests: replayed offline and compared with the recording."""
