"""Runs in folders."""
