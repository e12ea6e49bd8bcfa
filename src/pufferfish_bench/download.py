"""A file from the first mirror that serves it whole, and an archive unpacked whole; nothing here knows a dataset."""

import gzip
import hashlib
import re
import shutil
import socket
import sys
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from http.client import HTTPException, HTTPResponse, responses
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from rich import progress
from rich.console import Console

from pufferfish_bench.errors import InputError

CHUNK = 1 << 18  # bytes


class MirrorError(Exception):
    """Why one mirror did not give the file, in words for the person waiting. Never a fault of the local disk."""


class BrokenOffError(MirrorError):
    """The mirror began to serve and stopped in the middle: asking it once more for the rest may help."""


def fetch(urls: Sequence[str], path: Path, *, md5: str, timeout: float = 20.0) -> Path:
    """`path`, holding the file with this MD5. Mirrors are tried in order, each continuing what is there."""
    if path.exists():
        if (found := md5_of(path)) == md5:
            return path
        _say(f"{path} has MD5 {found}, expected {md5}: it will be replaced")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    if _size(part) and md5_of(part) == md5:  # an earlier call ended between the last byte and the rename
        return part.replace(path)
    faults = []
    for url in urls:
        host = urlsplit(url).netloc
        _say(f"fetching {path.name} from {host}")
        try:
            try:
                _continue(part, url, host, timeout)
            except BrokenOffError as fault:
                _say(f"{host}: {fault}; asking for the rest")
                _continue(part, url, host, timeout)
            if (got := md5_of(part)) != md5:
                part.unlink()
                raise MirrorError(f"wrong checksum, expected MD5 {md5}, got {got}")
        except MirrorError as fault:
            faults.append(f"{host}: {fault}")
            _say(faults[-1])
        else:
            part.replace(path)
            _say(f"fetched {path.name}, {_size(path):,} bytes, from {host}")
            return path
    kept = f"{_size(part):,} bytes are kept in {part}: the same command continues them" if _size(part) else ""
    raise InputError(
        f"{path.name} could not be fetched. {'; '.join(faults) or 'No mirror was given'}. "
        f"{kept or 'The same command tries again'}, or put the file at {path} by hand"
    )


def md5_of(path: Path) -> str:
    """The MD5 of a file's bytes, in lower-case hexadecimal digits."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def extract(archive: Path, destination: Path) -> None:
    """Each top-level entry of a tar.gz appears in `destination` whole or not at all, replacing one of the same name."""
    staging = destination / f".{archive.name}.extracting"  # beside the entries: a rename cannot cross file systems
    shutil.rmtree(staging, ignore_errors=True)  # of an earlier call that was killed
    fresh = staging / "fresh"
    fresh.mkdir(parents=True)
    # Early releases of 3.10 have no filters; the archives come here with their MD5 checked.
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with gzip.open(archive) as stream:
            while stream.read(CHUNK):  # tarfile stops before the gzip trailer and would never compare the CRC
                pass
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(fresh, **options)
        for entry in sorted(fresh.iterdir()):
            final = destination / entry.name
            if final.exists() or final.is_symlink():
                final.rename(staging / f"replaced {entry.name}")
            entry.rename(final)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{archive} cannot be unpacked ({error}): delete it and fetch it again") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _continue(part: Path, url: str, host: str, timeout: float) -> None:
    """Brings `part` to the length the mirror tells, from the start if the mirror does not continue it."""
    response, position, total = _open(url, _size(part), timeout)
    numbers = progress.DownloadColumn(), progress.TransferSpeedColumn(), progress.TimeRemainingColumn()
    console, silent = Console(stderr=True), not sys.stderr.isatty()
    bar = progress.Progress("{task.description}", progress.BarColumn(), *numbers, console=console, disable=silent)
    with response, part.open("ab" if position else "wb") as file, bar:
        task = bar.add_task(host, completed=position, total=total)
        for chunk in _chunks(response):
            file.write(chunk)  # outside the generator: a full disk is not taken for a broken connection
            position += len(chunk)
            bar.advance(task, len(chunk))
    if total is not None and position < total:
        raise BrokenOffError(f"broke off after {position:,} of {total:,} bytes")


def _open(url: str, offset: int, timeout: float) -> tuple[HTTPResponse, int, int | None]:
    """The answer, the position of its first byte (0 if the mirror does not continue), the file's length if told."""
    try:
        response = urlopen(Request(url, headers={"Range": f"bytes={offset}-"} if offset else {}), timeout=timeout)
    except HTTPError as error:
        response = error  # an answer like any other
    except (OSError, HTTPException, ValueError) as error:
        raise MirrorError(_in_words(error)) from error
    if response.status == 200:
        return response, 0, response.length
    fits = re.fullmatch(rf"bytes {offset}-\d+/(\d+)", response.headers.get("Content-Range", ""))
    if response.status == 206 and fits:
        return response, offset, int(fits[1])
    response.close()
    if response.status in (206, 416) and offset:  # the part does not fit this mirror's file
        return _open(url, 0, timeout)
    raise MirrorError(f"HTTP {response.status} {responses.get(response.status, '')}".strip())


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read1(CHUNK):  # not read(): it loses what has arrived when the rest does not
            yield chunk
    except (OSError, HTTPException) as error:
        raise BrokenOffError(f"broke off in the middle, {_in_words(error)}") from error


def _in_words(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    words = {socket.gaierror: "name not found", TimeoutError: "timed out", ConnectionRefusedError: "connection refused"}
    return words.get(type(reason)) or str(reason) or type(reason).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
