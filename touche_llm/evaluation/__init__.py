"""Evaluation of runs with human judgments: measures, significance and comparisons."""
