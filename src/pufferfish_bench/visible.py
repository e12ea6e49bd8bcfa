"""Words of others, made safe to show: a name in a record may hold anything."""

import re

TAG = re.compile(r"<(?=[A-Za-z/!?])")  # where HTML would see a tag; "< 3" is none


def visible(words: str, *, lines: bool = False) -> str:
    """The same words with every character that is not printed (escape sequences, line breaks, direction marks) spelt out.

    With `lines`, a line break stays one.
    """
    if words.isprintable():
        return words
    return "".join(
        letter if letter.isprintable() or (lines and letter == "\n") else letter.encode("unicode_escape").decode()
        for letter in words
    )


def in_markdown(words: str) -> str:
    """Words for a Markdown page, in which no HTML begins. Marks of Markdown itself stay what they are, and so do its lines."""
    return TAG.sub("&lt;", visible(words, lines=True))
