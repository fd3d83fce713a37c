"""Document text: sanitizing, boilerplate removal, passages, index terms."""
