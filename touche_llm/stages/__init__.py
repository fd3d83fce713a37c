"""The stages of a run: each a function from files to files of the run's folder."""
