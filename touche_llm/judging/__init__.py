"""Judging of documents: requests, readings, grades and stances."""
