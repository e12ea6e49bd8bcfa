"""Reading text files supplied by the user: they must be UTF-8 and contain words."""

from pathlib import Path

from pufferfish_bench.base.errors import InputError


def read_lines(path: Path, content: bytes | None = None) -> list[str]:
    """The lines of a file, or of `content` if it was read before. Only line feeds and carriage returns end a line.

    A file that is not UTF-8 or has no words is an InputError. It names the file and the position but never quotes the content.
    """
    content = path.read_bytes() if content is None else content
    lines = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError as error:
            raise not_text(path, number, error.start + 1) from None
        if "\0" in lines[-1]:  # UTF-16 and archives can be valid UTF-8 up to here
            raise not_text(path, number, line.index(0) + 1)
    if not any(line.strip() for line in lines):
        raise InputError(f"{path} is empty: it has no words. Check whether its download was complete")
    return lines


def not_text(path: Path, line: int, byte: int) -> InputError:
    return InputError(
        f"{path} is not text in UTF-8 (line {line:,}, byte {byte:,} of the line). Check whether it is compressed, damaged or in "
        "another encoding"
    )
