"""A run as one page that a person reads: figures, costs, and every document with what the model said of it."""
