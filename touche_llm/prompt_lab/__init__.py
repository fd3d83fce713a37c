"""Tools to improve prompts: lint, sample, comparison, trial."""
