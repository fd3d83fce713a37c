"""`python -m touche_llm` is `touche-llm`."""

from touche_llm.cli import main

main()
