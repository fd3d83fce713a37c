"""Batch files, the programs that answer them, and runs with them."""
