"""Self-contained HTML pages: one run, several runs compared, and prompts compared."""
