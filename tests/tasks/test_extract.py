"""Unpacking archives: each entry appears completely or not at all."""

import io
import signal
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.tasks.images.download import extract
from tests.support.another_process import in_another_process

FEW = settings(max_examples=12, deadline=None)  # each example opens real connections or real files
TREE = {"first/a": b"a" * 3000, "first/deep/b": bytes(range(250)) * 12, "second/c": b"c", "third": b"d"}


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
def test_a_cut_archive_extracts_nothing(archive, data):
    whole = archive.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        damaged = Path(folder) / "damaged.tar.gz"
        damaged.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1) | st.just(len(whole) - 8))])
        with pytest.raises(InputError, match=str(damaged)):
            extract(damaged, Path(folder) / "data")
        assert list((Path(folder) / "data").iterdir()) == []


@settings(FEW, max_examples=30)
@given(st.data())
def test_a_damaged_archive_extracts_all_or_nothing(archive, data):
    damaged_bytes = bytearray(archive.read_bytes())
    damaged_bytes[data.draw(st.integers(0, len(damaged_bytes) - 1))] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        damaged = Path(folder) / "damaged.tar.gz"
        damaged.write_bytes(damaged_bytes)
        expected = {}
        with suppress(InputError):
            extract(damaged, Path(folder) / "data")
            expected = TREE  # an insignificant byte of the gzip header, such as the time
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
