"""The lines of text files that people bring: in UTF-8, and with words in them."""

from pathlib import Path

from pufferfish_bench.errors import InputError


def lines(path: Path, content: bytes | None = None) -> list[str]:
    """The lines of a file, or of what was read from it; only a line feed or a carriage return ends one.

    A file that is not UTF-8 or has no words is refused by name and place; nothing of what is in it is repeated.
    """
    content = path.read_bytes() if content is None else content
    found = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            found.append(line.decode())
        except UnicodeDecodeError as error:
            raise not_text(path, number, error.start + 1) from None
        if "\0" in found[-1]:  # UTF-16 and archives can look like UTF-8 until then
            raise not_text(path, number, line.index(0) + 1)
    if not any(line.strip() for line in found):
        raise InputError(f"{path} is empty: it has no words; is it damaged, or was its download cut short?")
    return found


def not_text(path: Path, line: int, byte: int) -> InputError:
    return InputError(
        f"{path} is not text in UTF-8 (line {line:,}, byte {byte:,} of the line): is it still packed, damaged, or in another "
        "encoding?"
    )
