"""Free memory: the system's, or what remains under a container's limit."""

import os
from pathlib import Path

import pytest

from pufferfish_bench.training import memory


def test_free_memory_is_positive_and_at_most_the_installed_memory():
    assert 0 < memory.free_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("limit", "used", "files"),
    [
        ("3000", "1000", ("memory.max", "memory.current")),
        ("3000", "1000", ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")),
        ("max", "1000", ("memory.max", "memory.current")),
    ],
)
def test_a_containers_memory_limit_is_respected(tmp_path: Path, limit: str, used: str, files: tuple[str, str]):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 4 kB\n")
    for name, text in zip(files, (limit, used), strict=True):
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert memory.free_memory(tmp_path) == (4096 if limit == "max" else 2000)
