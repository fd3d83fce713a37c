"""Ranking methods: judgments and candidates to run lines, one file per method."""
