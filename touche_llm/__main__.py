"""`python -m touche_llm` is `touche-llm`."""

from touche_llm.cli import main

# vLLM's processes import this module again.
if __name__ == "__main__":
    main()
