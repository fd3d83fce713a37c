"""Interfaces to other tools."""
