"""Engines, which answer requests: servers, Ray, batch files, functions, dry runs."""
