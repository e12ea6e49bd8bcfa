"""A checkpoint is either complete or absent."""

import errno
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import Damaged
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.training import checkpoints
from pufferfish_bench.training.checkpoints import Checkpoints


def state(epoch: int, step: int = 0) -> dict:
    return {"epoch": epoch, "step": step, "model": {"weight": torch.full((100,), float(epoch))}, "plain": [{"a": 1.5, "b": None}]}


def test_a_checkpoint_loads_as_it_was_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    keeper = Checkpoints(directory=tmp_path, world=single_process())
    assert keeper.load() is None
    keeper.save(state(3, 7), {})
    loaded = keeper.load()
    assert torch.equal(loaded.pop("model")["weight"], state(3)["model"]["weight"])
    assert loaded == {"epoch": 3, "step": 7, "plain": [{"a": 1.5, "b": None}]}
    assert not caplog.messages


def test_the_newest_and_the_one_before_it_are_kept(tmp_path: Path):
    keeper = Checkpoints(directory=tmp_path, world=single_process())
    for epoch, step in ((1, 0), (2, 0), (2, 9), (2, 10), (10, 0)):
        keeper.save(state(epoch, step), {})
    assert [path.name for path in tmp_path.iterdir() if path not in keeper.paths()] == []
    assert [path.name for path in keeper.paths()] == ["epoch00002-step0000010.pt", "epoch00010-step0000000.pt"]
    assert keeper.load()["epoch"] == 10


@given(st.data())
def test_any_flipped_bit_and_any_truncation_is_detected(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    path = tmp_path_factory.mktemp("damage") / "x.pt"
    checkpoints.write(path, state(1))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[place:]
    path.write_bytes(content)
    with pytest.raises(Damaged, match=r"x\.pt"):
        checkpoints.read(path)


def test_a_damaged_newest_checkpoint_is_named_and_the_previous_one_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    keeper = Checkpoints(directory=tmp_path, world=single_process())
    keeper.save(state(1), {})
    newest = keeper.save(state(2), {})
    newest.write_bytes(newest.read_bytes()[:-5])
    assert keeper.load()["epoch"] == 1
    assert len(caplog.messages) == 1
    assert newest.name in caplog.messages[0]
    keeper.save(state(2), {})
    assert keeper.load()["epoch"] == 2


def test_when_all_checkpoints_are_damaged_a_warning_says_that_the_run_starts_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    keeper = Checkpoints(directory=tmp_path, world=single_process())
    for epoch in (1, 2):
        keeper.save(state(epoch), {}).write_bytes(b"nothing")
    assert keeper.load() is None
    assert ["before it" in warning for warning in caplog.messages] == [True, True]
    assert ["starting from the beginning" in warning for warning in caplog.messages] == [False, True]


def test_a_full_disk_leaves_the_existing_checkpoints_unchanged(tmp_path: Path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no small disk to fill: {mounted.stderr.strip()}")
    try:
        keeper = Checkpoints(directory=small, world=single_process())
        keeper.save(state(1), {})
        with pytest.raises(OSError, match="No space left") as caught:
            keeper.save(state(2) | {"model": {"weight": torch.zeros(100_000)}}, {})
        assert caught.value.errno == errno.ENOSPC
        assert "epoch00002" in caught.value.filename
        assert [path.name for path in small.iterdir()] == ["epoch00001-step0000000.pt"]
        assert keeper.load()["epoch"] == 1
    finally:
        subprocess.run(["umount", small], check=True)


def test_nothing_in_a_checkpoint_can_run_code(tmp_path: Path):
    class Evil:
        def __reduce__(self):
            return print, ("ran",)

    path = tmp_path / "evil.pt"
    checkpoints.write(path, {"epoch": Evil()})
    with pytest.raises(Exception, match="Weights only"):
        checkpoints.read(path)
