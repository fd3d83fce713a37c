"""What can go wrong, by who has to act. Every message says what, where, and what to do next."""


class ToucheError(Exception):
    """Base of all errors that the command line prints as one line."""

    exit_code = 1


class DataError(ToucheError):
    """A file that was given does not hold what it should: the person with the file has to act."""


class UsageError(ToucheError):
    """A command, an option or a configuration that cannot be carried out as it was asked."""

    exit_code = 2


class PromptError(ToucheError):
    """A prompt template that cannot be loaded or rendered: its author has to act."""


class EngineError(ToucheError):
    """The engine cannot be used at all (not there, wrong model, does not enforce schemas)."""


class ReplayMiss(ToucheError):
    """Replay asked for answers that the cache does not hold."""
