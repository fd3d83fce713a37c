"""Topics: reading and writing in each format."""
