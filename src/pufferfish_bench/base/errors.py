"""Exceptions whose message is shown to the user."""


class InputError(ValueError):
    """An error that the user can fix. Shown as one sentence without a traceback; the command exits with code 2."""


class Damaged(ValueError):
    """A checkpoint that cannot be used: its checksum is wrong, or its content does not fit the run."""
