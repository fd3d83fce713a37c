"""The program: `touche-llm`, or `python -m touche_llm`."""

from touche_llm.interrupts import end_if_interrupted, handle_signals


def main() -> None:
    """Run the command line, which an interrupt ends from its first imports on."""
    handle_signals()
    from touche_llm import cli  # slow to load

    try:
        cli.main()
    finally:
        end_if_interrupted()


# vLLM's processes import this module again.
if __name__ == "__main__":
    main()
