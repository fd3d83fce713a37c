"""Records, topics, TREC runs, and files of records."""
