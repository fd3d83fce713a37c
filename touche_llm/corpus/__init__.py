"""Corpora: readers that stream documents, and the store that finds them by id."""
