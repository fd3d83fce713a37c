"""Records, topics, TREC runs and record files."""
