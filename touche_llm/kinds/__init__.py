"""Kinds of task: what is ranked, and how it is found and judged."""
