"""The prompt workbench: a page in the browser, served on this machine alone."""
