"""Requests to a language model and their answers: key, cache, client, labels."""
