"""Records, topics, run files, kinds of files, and files written whole."""
