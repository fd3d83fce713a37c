"""First stage in ChatNoir, the search engine over ClueWeb22-B."""
