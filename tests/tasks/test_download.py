"""Downloads, from a real server on the loopback interface that fails in every way."""

import errno
import hashlib
import os
import pty
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.tasks.images.download import fetch, md5_of
from tests.support.another_process import in_another_process
from tests.support.mirror import CONTENT, running

MD5 = hashlib.md5(CONTENT).hexdigest()
WRONG = bytes(len(CONTENT))
FEW = settings(max_examples=12, deadline=None)  # each example opens real connections or real files


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


FETCH = "fetch([sys.argv[1]], Path(sys.argv[2]), md5=sys.argv[3])"


def test_a_download_gives_the_file_and_leaves_no_part(mirror, path):
    assert fetch([mirror.url], path, md5=MD5) == path
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_nothing_is_downloaded_if_the_file_is_there(mirror, path, part):
    path.write_bytes(CONTENT)
    assert fetch([mirror.url], path, md5=MD5) == path
    assert mirror.asked == []


def test_a_file_with_another_checksum_is_replaced(mirror, path, part):
    path.write_bytes(CONTENT[:-1])
    fetch([mirror.url], path, md5=MD5)
    assert path.read_bytes() == CONTENT


def test_a_complete_part_is_only_renamed(mirror, path, part):
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


def test_an_interrupted_download_is_continued_and_no_byte_is_downloaded_twice():
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


def test_after_two_broken_connections_the_next_mirror_continues_the_part(mirror, second, path):
    mirror.reset(cuts=[1000, 500, 10])
    fetch([mirror.url, second.url], path, md5=MD5)
    assert mirror.asked == [None, "bytes=1000-"]
    assert second.asked == ["bytes=1500-"]
    assert path.read_bytes() == CONTENT


def test_a_mirror_that_stops_sending_is_asked_for_the_rest(mirror, path):
    mirror.reset(cuts=[1000], stall=True)
    fetch([mirror.url], path, md5=MD5, timeout=0.5)
    assert mirror.asked == [None, "bytes=1000-"]
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("fault", [{"ranges": False}, {"shift": 1}, {"shift": -1}], ids=str)
def test_a_server_without_ranges_still_gives_the_right_file(mirror, path, part, fault):
    part.write_bytes(CONTENT[:1000])
    mirror.reset(**fault)
    fetch([mirror.url], path, md5=MD5)
    assert mirror.asked == ["bytes=1000-", None][: 1 if fault == {"ranges": False} else 2]  # 200 is the file already
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("length", [len(CONTENT), len(CONTENT) + 1])
def test_a_part_of_another_file_is_discarded(mirror, path, part, length):
    part.write_bytes(bytes(length))
    fetch([mirror.url], path, md5=MD5)
    assert mirror.asked == [f"bytes={length}-", None]  # the first is answered with 416
    assert path.read_bytes() == CONTENT


def test_a_mirror_that_refuses_does_not_lose_the_part(mirror, dead, path, part):
    part.write_bytes(CONTENT[:1000])
    mirror.reset(status=416)
    with pytest.raises(InputError, match="HTTP 416"):
        fetch([mirror.url, f"http://{dead}/file"], path, md5=MD5)
    assert mirror.asked == ["bytes=1000-", None]
    assert part.read_bytes() == CONTENT[:1000]


def test_a_file_of_unknown_length_is_downloaded(mirror, path):
    mirror.reset(send_length=False)
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
    assert second.asked == [None]  # the wrong file is not continued
    assert path.read_bytes() == CONTENT


def test_if_all_mirrors_fail_the_message_names_every_host(mirror, silent, dead, path, monkeypatch):
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
    assert f"put the file at {path} yourself" in sentence
    assert "kept" not in sentence


def test_the_message_says_where_the_part_is_kept(mirror, path):
    mirror.reset(cuts=[1000, 500])
    with pytest.raises(InputError, match=rf"1,500 bytes are kept in {path}.part: run the same command again to continue"):
        fetch([mirror.url], path, md5=MD5)
    fetch([mirror.url], path, md5=MD5)
    assert mirror.asked[-1] == "bytes=1500-"
    assert path.read_bytes() == CONTENT


def test_a_full_disk_is_not_blamed_on_a_mirror(mirror, second, path, part):
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
    assert start == f"downloading file from {mirror.host}"
    assert end == f"downloaded file from {mirror.host}: {len(CONTENT):,} bytes"
    assert shown.out == ""


def test_on_a_terminal_there_is_a_progress_bar_on_stderr(mirror, path):
    ours, theirs = pty.openpty()
    process = in_another_process(FETCH, mirror.url, path, MD5, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    stdout, _ = process.communicate(timeout=8)
    shown = os.read(ours, 1 << 16).decode()  # a few hundred characters, all of them waiting
    os.close(ours)
    assert re.search(rf"{mirror.host}\S* \S*━.*kB", shown), shown
    assert stdout == b""


def test_md5_of_is_the_checksum_of_the_bytes(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT * 3)  # longer than one chunk
    assert md5_of(tmp_path / "file") == hashlib.md5(CONTENT * 3).hexdigest()
