"""Run files in TREC format: reading and writing."""
