"""Ranking methods, one file each, and what they share."""
