"""Laws of fetching and unpacking, against a real server on loopback whose faults are made to order."""

import errno
import hashlib
import io
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pufferfish_bench
from pufferfish_bench.download import extract, fetch, md5_of
from pufferfish_bench.errors import InputError

CONTENT = b"".join(i.to_bytes(4, "big") for i in range(50_000))  # no two places look alike
MD5 = hashlib.md5(CONTENT).hexdigest()
WRONG = bytes(len(CONTENT))
FEW = settings(max_examples=12, deadline=None)  # each example opens real connections or real files


class Mirror(ThreadingHTTPServer):
    """A server of one file that remembers what it was asked for and how many bytes it sent."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.host = f"127.0.0.1:{self.server_port}"
        self.url = f"http://{self.host}/file"
        self.resume = threading.Event()
        self.reset()

    def reset(self, content=CONTENT, cuts=(), status=None, ranges=True, shift=0, stall=False, told=True):
        self.content, self.status, self.ranges, self.shift, self.stall = content, status, ranges, shift, stall
        self.cuts = list(cuts)  # the n-th answer ends after so many bytes of its body
        self.told = told  # whether the length is
        self.asked, self.served = [], []


class Answer(BaseHTTPRequestHandler):
    """One answer of a Mirror, with the fault that is due."""

    def do_GET(self):
        mirror, asked = self.server, self.headers["Range"]
        mirror.asked.append(asked)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and mirror.ranges else 0
        if mirror.status or start >= len(mirror.content):
            return self.send_error(mirror.status or 416)
        start += mirror.shift if start else 0
        body = mirror.content[start:]
        self.send_response(206 if start else 200)
        if mirror.told:
            self.send_header("Content-Length", str(len(body)))
        if start:
            total = len(mirror.content)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.end_headers()
        body = body[: mirror.cuts.pop(0)] if mirror.cuts else body
        mirror.served.append(len(body))
        self.wfile.write(body)
        if mirror.stall:
            mirror.resume.wait(5)

    def log_message(self, *arguments):
        pass


@contextmanager
def running():
    mirror = Mirror()
    thread = threading.Thread(target=mirror.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield mirror
    finally:
        mirror.resume.set()
        mirror.shutdown()
        mirror.server_close()
        thread.join()


@pytest.fixture
def mirror():
    with running() as server:
        yield server


@pytest.fixture
def second():
    with running() as server:
        yield server


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "file"


@pytest.fixture
def part(path):
    path.parent.mkdir()
    return path.with_name("file.part")


@pytest.fixture
def dead():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    return f"127.0.0.1:{port}"


@pytest.fixture
def silent():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # connections wait here and are never answered
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def in_another_process(code, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(Path(pufferfish_bench.__file__).parents[1]), "TERM": "xterm"}
    code = f"import sys\nfrom pathlib import Path\nfrom pufferfish_bench.download import extract, fetch\n{code}"
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env=environment, **options)


FETCH = "fetch([sys.argv[1]], Path(sys.argv[2]), md5=sys.argv[3])"


def test_a_fetched_file_is_the_file_and_no_part_stays(mirror, path):
    assert fetch([mirror.url], path, md5=MD5) == path
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_nothing_is_fetched_when_the_file_is_there(mirror, path, part):
    path.write_bytes(CONTENT)
    assert fetch([mirror.url], path, md5=MD5) == path
    assert mirror.asked == []


def test_a_file_with_another_checksum_is_replaced(mirror, path, part):
    path.write_bytes(CONTENT[:-1])
    fetch([mirror.url], path, md5=MD5)
    assert path.read_bytes() == CONTENT


def test_a_whole_part_needs_only_its_name(mirror, path, part):
    part.write_bytes(CONTENT)
    fetch([mirror.url], path, md5=MD5)
    assert mirror.asked == []
    assert path.read_bytes() == CONTENT
    assert not part.exists()


def test_the_part_of_an_earlier_call_is_continued(mirror, path, part):
    part.write_bytes(CONTENT[:70_001])
    fetch([mirror.url], path, md5=MD5)
    assert mirror.asked == ["bytes=70001-"]
    assert mirror.served == [len(CONTENT) - 70_001]
    assert path.read_bytes() == CONTENT


def test_an_interrupted_download_is_continued_and_no_byte_is_fetched_twice():
    with running() as mirror:

        @FEW
        @given(st.lists(st.integers(0, len(CONTENT)), max_size=3))
        def law(cuts):
            mirror.reset(cuts=cuts)
            with tempfile.TemporaryDirectory() as folder:
                fetched = fetch([mirror.url, mirror.url], Path(folder) / "file", md5=MD5)
                assert fetched.read_bytes() == CONTENT
            starts = [sum(mirror.served[:i]) for i in range(len(mirror.served))]
            assert mirror.asked == [f"bytes={start}-" if start else None for start in starts]
            assert sum(mirror.served) == len(CONTENT)

        law()


def test_a_mirror_that_breaks_off_twice_hands_its_part_to_the_next(mirror, second, path):
    mirror.reset(cuts=[1000, 500, 10])
    fetch([mirror.url, second.url], path, md5=MD5)
    assert mirror.asked == [None, "bytes=1000-"]
    assert second.asked == ["bytes=1500-"]
    assert path.read_bytes() == CONTENT


def test_a_mirror_that_falls_silent_is_asked_for_the_rest(mirror, path):
    mirror.reset(cuts=[1000], stall=True)
    fetch([mirror.url], path, md5=MD5, timeout=0.5)
    assert mirror.asked == [None, "bytes=1000-"]
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("fault", [{"ranges": False}, {"shift": 1}, {"shift": -1}], ids=str)
def test_a_server_that_does_not_continue_still_gives_the_right_file(mirror, path, part, fault):
    part.write_bytes(CONTENT[:1000])
    mirror.reset(**fault)
    fetch([mirror.url], path, md5=MD5)
    assert mirror.asked == ["bytes=1000-", None][: 1 if fault == {"ranges": False} else 2]  # 200 is the file already
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("length", [len(CONTENT), len(CONTENT) + 1])
def test_a_part_that_is_not_of_this_file_is_started_over(mirror, path, part, length):
    part.write_bytes(bytes(length))
    fetch([mirror.url], path, md5=MD5)
    assert mirror.asked == [f"bytes={length}-", None]  # the first is answered with 416
    assert path.read_bytes() == CONTENT


def test_a_mirror_that_refuses_does_not_cost_the_part(mirror, dead, path, part):
    part.write_bytes(CONTENT[:1000])
    mirror.reset(status=416)
    with pytest.raises(InputError, match="HTTP 416"):
        fetch([mirror.url, f"http://{dead}/file"], path, md5=MD5)
    assert mirror.asked == ["bytes=1000-", None]
    assert part.read_bytes() == CONTENT[:1000]


def test_a_file_of_untold_length_is_fetched(mirror, path):
    mirror.reset(told=False)
    fetch([mirror.url], path, md5=MD5)
    assert path.read_bytes() == CONTENT


def test_a_dead_host_is_named_and_the_next_mirror_serves(mirror, dead, path, capsys):
    fetch([f"http://{dead}/file", mirror.url], path, md5=MD5)
    assert path.read_bytes() == CONTENT
    assert f"{dead}: connection refused" in capsys.readouterr().err


def test_a_wrong_checksum_never_reaches_the_final_name(mirror, second, path):
    mirror.reset(content=WRONG)
    with pytest.raises(InputError) as raised:
        fetch([mirror.url], path, md5=MD5)
    got = hashlib.md5(WRONG).hexdigest()
    assert f"{mirror.host}: wrong checksum, expected MD5 {MD5}, got {got}" in str(raised.value)
    assert list(path.parent.iterdir()) == []
    assert mirror.asked == [None]
    fetch([mirror.url, second.url], path, md5=MD5)
    assert second.asked == [None]  # nothing of the wrong file is continued
    assert path.read_bytes() == CONTENT


def test_all_mirrors_dead_and_every_host_is_in_the_sentence(mirror, silent, dead, path, monkeypatch):
    mirror.reset(status=404)
    resolve = socket.getaddrinfo

    def without_names(host, *arguments, **options):
        if host == "nowhere.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", without_names)
    urls = ["http://nowhere.example/file", f"http://{dead}/file", mirror.url, f"http://{silent}/file"]
    with pytest.raises(InputError) as raised:
        fetch(urls, path, md5=MD5, timeout=0.5)
    sentence = str(raised.value)
    assert "nowhere.example: name not found" in sentence
    assert f" {dead}: connection refused" in sentence
    assert f"{mirror.host}: HTTP 404 Not Found" in sentence
    assert f"{silent}: timed out" in sentence
    assert f"put the file at {path} by hand" in sentence
    assert "kept" not in sentence


def test_the_sentence_says_where_the_part_is_kept(mirror, path):
    mirror.reset(cuts=[1000, 500])
    with pytest.raises(InputError, match=rf"1,500 bytes are kept in {path}.part: the same command continues them"):
        fetch([mirror.url], path, md5=MD5)
    fetch([mirror.url], path, md5=MD5)
    assert mirror.asked[-1] == "bytes=1500-"
    assert path.read_bytes() == CONTENT


def test_a_full_disk_is_not_the_fault_of_a_mirror(mirror, second, path, part):
    part.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        fetch([mirror.url, second.url], path, md5=MD5)
    assert raised.value.errno == errno.ENOSPC
    assert mirror.asked == [None]
    assert second.asked == []


def test_a_kill_in_the_middle_is_continued_by_the_next_call(mirror, path, part):
    mirror.reset(cuts=[150_000], stall=True)
    process = in_another_process(FETCH, mirror.url, path, MD5, stderr=subprocess.DEVNULL)
    for _ in range(500):
        if part.exists() and part.stat().st_size > 100_000:
            break
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not path.exists()
    have = part.stat().st_size
    assert part.read_bytes() == CONTENT[:have] != b""
    mirror.reset()
    fetch([mirror.url], path, md5=MD5)
    assert mirror.asked == [f"bytes={have}-"]
    assert path.read_bytes() == CONTENT


def test_without_a_terminal_there_is_one_line_at_the_start_and_one_at_the_end(mirror, path, capsys):
    fetch([mirror.url], path, md5=MD5)
    shown = capsys.readouterr()
    start, end = shown.err.splitlines()
    assert start == f"fetching file from {mirror.host}"
    assert end == f"fetched file, {len(CONTENT):,} bytes, from {mirror.host}"
    assert shown.out == ""


def test_on_a_terminal_there_is_a_bar_and_it_is_on_stderr(mirror, path):
    ours, theirs = pty.openpty()
    process = in_another_process(FETCH, mirror.url, path, MD5, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    stdout, _ = process.communicate(timeout=8)
    shown = os.read(ours, 1 << 16).decode()  # a few hundred characters, all of them waiting
    os.close(ours)
    assert re.search(rf"{mirror.host}\S* \S*━.*kB", shown), shown
    assert stdout == b""


TREE = {"first/a": b"a" * 3000, "first/deep/b": CONTENT[:3000], "second/c": b"c", "third": b"d"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    archive = tmp_path_factory.mktemp("archive") / "tree.tar.gz"
    write_archive(archive, TREE)
    return archive


def write_archive(path, tree):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in tree.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def files_in(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_extract_unpacks_everything_and_leaves_nothing_else(archive, tmp_path):
    extract(archive, tmp_path / "data")
    assert files_in(tmp_path / "data") == TREE
    assert {entry.name for entry in (tmp_path / "data").iterdir()} == {"first", "second", "third"}


def test_extract_replaces_its_own_entries_and_touches_no_other(archive, tmp_path):
    for name in ("first/stale", "third/stale", "other/mine"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"old")
    extract(archive, tmp_path)
    assert files_in(tmp_path) == TREE | {"other/mine": b"old"}


@FEW
@given(st.data())
def test_extract_of_a_cut_archive_is_nothing(archive, data):
    whole = archive.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        damaged = Path(folder) / "damaged.tar.gz"
        damaged.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1) | st.just(len(whole) - 8))])
        with pytest.raises(InputError, match=str(damaged)):
            extract(damaged, Path(folder) / "data")
        assert list((Path(folder) / "data").iterdir()) == []


@settings(FEW, max_examples=30)
@given(st.data())
def test_extract_of_a_damaged_archive_is_all_or_nothing(archive, data):
    damaged_bytes = bytearray(archive.read_bytes())
    damaged_bytes[data.draw(st.integers(0, len(damaged_bytes) - 1))] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        damaged = Path(folder) / "damaged.tar.gz"
        damaged.write_bytes(damaged_bytes)
        expected = {}
        with suppress(InputError):
            extract(damaged, Path(folder) / "data")
            expected = TREE  # the byte was one of the gzip header that means nothing, such as the time
        assert files_in(Path(folder) / "data") == expected


EXTRACT_AND_DIE = """
import os, signal
archive, destination, event_to_die_at, left = *sys.argv[1:4], int(sys.argv[4])
def hook(event, arguments):
    global left
    if event == event_to_die_at and destination in str(arguments[0]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
extract(Path(archive), Path(destination))
"""


@pytest.mark.parametrize(("event", "count"), [("open", 2), ("open", 4), ("os.rename", 1), ("os.rename", 3)])
def test_a_kill_in_the_middle_of_extract_leaves_only_whole_entries(archive, tmp_path, event, count):
    process = in_another_process(EXTRACT_AND_DIE, archive, tmp_path, event, count)
    assert process.wait(timeout=8) == -signal.SIGKILL
    final = {name: content for name, content in files_in(tmp_path).items() if not name.startswith(".")}
    entries = {name.split("/")[0] for name in final}
    assert final == {name: content for name, content in TREE.items() if name.split("/")[0] in entries}
    extract(archive, tmp_path)
    assert files_in(tmp_path) == TREE


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="this tarfile has no filters")
def test_an_archive_cannot_write_outside_the_destination(tmp_path):
    write_archive(tmp_path / "evil.tar.gz", {"good": b"", "../../../escaped": b"x"})
    with pytest.raises(InputError, match=r"evil\.tar\.gz"):
        extract(tmp_path / "evil.tar.gz", tmp_path / "data")
    assert set(files_in(tmp_path)) == {"evil.tar.gz"}


def test_md5_of_is_the_checksum_of_the_bytes(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT * 3)  # longer than one chunk
    assert md5_of(tmp_path / "file") == hashlib.md5(CONTENT * 3).hexdigest()
