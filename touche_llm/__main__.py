"""The program: `touche-llm`, or `python -m touche_llm`."""

import gc
import sys

# Number of new objects from which garbage is collected; Python's default is 700. A command imports
# about 900 modules, whose objects live until it ends, so that collections before find nothing.
_COLLECTION_THRESHOLD = 20_000


def main() -> None:
    """Run the command line, which an interrupt ends from its first imports on."""
    try:
        from touche_llm.interrupts import end_if_interrupted, handle_signals

        handle_signals()
    except KeyboardInterrupt:  # by Python's own handler, in the milliseconds before
        print("interrupted", file=sys.stderr)
        sys.exit(130)

    gc.set_threshold(_COLLECTION_THRESHOLD)
    from touche_llm import cli  # slow to load

    try:
        cli.main()
    finally:
        end_if_interrupted()


# vLLM's processes import this module again.
if __name__ == "__main__":
    main()
