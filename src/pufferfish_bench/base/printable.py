"""Makes untrusted text safe to print: a name in a record may contain anything."""

import re

TAG = re.compile(r"<(?=[A-Za-z/!?])")  # where HTML would see a tag; "< 3" is none


def printable(words: str, *, lines: bool = False) -> str:
    """The same text with every non-printable character (escape sequences, line breaks, direction marks) escaped.

    With `lines`, line breaks are kept.
    """
    if words.isprintable():
        return words
    return "".join(
        letter if letter.isprintable() or (lines and letter == "\n") else letter.encode("unicode_escape").decode()
        for letter in words
    )


def in_markdown(words: str) -> str:
    """Text for a Markdown page with HTML tags escaped. Markdown itself and line breaks are kept."""
    return TAG.sub("&lt;", printable(words, lines=True))
