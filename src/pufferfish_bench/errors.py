"""The one exception that speaks to the person who typed the command."""


class InputError(ValueError):
    """Something the user can mend. Shown as a sentence without a traceback; the command ends with code 2."""
