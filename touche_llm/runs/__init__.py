"""Runs in folders: names of files, resume, the record of a stage, dry runs."""
