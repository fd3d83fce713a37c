"""Checks of a server: a file each."""
