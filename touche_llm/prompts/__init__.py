"""Prompt templates: loading, sandbox, few-shot examples, and purposes."""
