"""Batch files: their runners, `vllm run-batch` and a Ray Data job, and runs made of them."""
