"""Measures of systems with unjudged documents, whose grades are estimated from a judge's labels."""
