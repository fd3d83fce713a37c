"""First stage in Elasticsearch."""
