"""The configuration of a run, its files, and copies of tasks."""
