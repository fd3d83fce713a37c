"""Agreement of judges with people: labels, probabilities, and the order of systems."""
