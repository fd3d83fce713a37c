"""Text of documents: sanitizing, boilerplate, passages, index terms."""
