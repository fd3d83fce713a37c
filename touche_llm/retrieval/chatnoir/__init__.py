"""First stage with ChatNoir, the search engine over ClueWeb22-B."""
