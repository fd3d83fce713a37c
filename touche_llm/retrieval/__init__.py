"""First stages: retrieval without a language model."""
