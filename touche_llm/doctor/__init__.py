"""Checks of a server, made when a run starts and by `touche-llm doctor`."""
