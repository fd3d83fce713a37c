"""The stages of a run: retrieve, judge, rank."""
