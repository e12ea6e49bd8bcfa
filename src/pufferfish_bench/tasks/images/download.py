"""Downloads from a list of mirrors with a checksum, and complete extraction of archives.

Why not pooch: it checks hashes, but takes one URL per file and deletes a partial file when a download fails. Here the next
mirror or the next run continues the partial file, and the error names each host with its problem.
"""

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

from pufferfish_bench.base.errors import InputError

CHUNK = 1 << 18  # bytes


class MirrorError(Exception):
    """Why one mirror did not provide the file. Never an error of the local disk."""


class BrokenConnectionError(MirrorError):
    """The connection broke during the transfer: the same mirror may send the rest on a second request."""


def fetch(urls: Sequence[str], path: Path, *, md5: str, timeout: float = 20.0) -> Path:
    """Download a file with this MD5 to `path`, unless it is there. Each mirror continues what the ones before it have sent."""
    if path.exists():
        if (found := md5_of(path)) == md5:
            return path
        _log(f"{path} has MD5 {found}, expected {md5}: downloading it again")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    if _size(part) and md5_of(part) == md5:  # an earlier call was killed between the last byte and the rename
        return part.replace(path)
    failures = []
    for url in urls:
        host = urlsplit(url).netloc
        _log(f"downloading {path.name} from {host}")
        try:
            _fetch_from(url, host, part, md5, timeout)
        except MirrorError as failure:
            failures.append(f"{host}: {failure}")
            _log(failures[-1])
        else:
            part.replace(path)
            _log(f"downloaded {path.name} from {host}: {_size(path):,} bytes")
            return path
    kept = f"{_size(part):,} bytes are kept in {part}: run the same command again to continue" if _size(part) else ""
    raise InputError(
        f"{path.name} cannot be downloaded. {'; '.join(failures) or 'No mirror was given'}. "
        f"{kept or 'Run the same command to try again'}, or put the file at {path} yourself"
    )


def md5_of(path: Path) -> str:
    """The MD5 of a file, as lower-case hexadecimal digits."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def extract(archive: Path, destination: Path) -> None:
    """Unpack a tar.gz. Each top-level entry appears in `destination` complete or not at all, replacing an existing one."""
    staging = destination / f".{archive.name}.extracting"  # in `destination`, because a rename cannot cross file systems
    shutil.rmtree(staging, ignore_errors=True)  # left by a call that was killed
    fresh = staging / "fresh"
    fresh.mkdir(parents=True)
    # Early releases of Python 3.10 have no filters; the MD5 of the archive has been checked.
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with gzip.open(archive) as stream:
            while stream.read(CHUNK):  # tarfile stops before the gzip trailer, so it never checks the CRC
                pass
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(fresh, **options)
        for entry in sorted(fresh.iterdir()):
            final = destination / entry.name
            if final.exists() or final.is_symlink():
                final.rename(staging / f"replaced {entry.name}")
            entry.rename(final)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{archive} cannot be unpacked ({error}): delete it and download it again") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fetch_from(url: str, host: str, part: Path, md5: str, timeout: float) -> None:
    """Complete `part` from one mirror, with a second request if the connection breaks, and check it."""
    try:
        _transfer(part, url, host, timeout)
    except BrokenConnectionError as failure:
        _log(f"{host}: {failure}; requesting the rest")
        _transfer(part, url, host, timeout)
    if (found := md5_of(part)) != md5:
        part.unlink()
        raise MirrorError(f"wrong checksum, expected MD5 {md5}, got {found}")


def _transfer(part: Path, url: str, host: str, timeout: float) -> None:
    """Append the rest of the file to `part`, or write it from the start if the mirror cannot continue it."""
    response, position, total = _open(url, _size(part), timeout)
    columns = progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn(), progress.TimeRemainingColumn()
    quiet = not sys.stderr.isatty()
    bar = progress.Progress("{task.description}", *columns, console=Console(stderr=True), disable=quiet)
    with response, part.open("ab" if position else "wb") as file, bar:
        task = bar.add_task(host, completed=position, total=total)
        for chunk in _chunks(response):
            file.write(chunk)  # outside the generator, so that a full disk is not reported as a broken connection
            position += len(chunk)
            bar.advance(task, len(chunk))
    if total is not None and position < total:
        raise BrokenConnectionError(f"the connection broke after {position:,} of {total:,} bytes")


def _open(url: str, offset: int, timeout: float) -> tuple[HTTPResponse, int, int | None]:
    """The response, the position of its first byte (0 if the mirror cannot continue) and the length of the file if known."""
    try:
        response = urlopen(Request(url, headers={"Range": f"bytes={offset}-"} if offset else {}), timeout=timeout)
    except HTTPError as error:
        response = error  # handled by its status below
    except (OSError, HTTPException, ValueError) as error:
        raise MirrorError(_reason(error)) from error
    if response.status == 200:
        return response, 0, response.length
    fits = re.fullmatch(rf"bytes {offset}-\d+/(\d+)", response.headers.get("Content-Range", ""))
    if response.status == 206 and fits:
        return response, offset, int(fits[1])
    response.close()
    if response.status in (206, 416) and offset:  # the part does not match this mirror's file
        return _open(url, 0, timeout)
    raise MirrorError(f"HTTP {response.status} {responses.get(response.status, '')}".strip())


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read1(CHUNK):  # read() would lose the bytes received before an error
            yield chunk
    except (OSError, HTTPException) as error:
        raise BrokenConnectionError(f"the connection broke, {_reason(error)}") from error


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    words = {socket.gaierror: "name not found", TimeoutError: "timed out", ConnectionRefusedError: "connection refused"}
    return words.get(type(reason)) or str(reason) or type(reason).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
