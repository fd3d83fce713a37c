"""Zero-shot argument retrieval for the Touché shared tasks, with open-weight models served by vLLM."""
