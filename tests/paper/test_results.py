"""The published files in results/ come from the committed records."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pufferfish_bench.cli import report
from pufferfish_bench.paper import tables
from pufferfish_bench.records.files import RUN, read_json
from pufferfish_bench.records.provenance import sittings_of
from tests.support.repository import REPOSITORY

RECORDS = ("records", "bench", "advisor")  # everything else is generated from these


def committed() -> set[str]:
    """The files of results/ that git knows."""
    listed = subprocess.run(["git", "ls-files", "results"], cwd=REPOSITORY, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is not a git checkout: the committed files are not known")
    return {name.removeprefix("results/") for name in listed.stdout.split("\n") if name}


def test_the_report_reproduces_all_published_files_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    published, results = committed(), tmp_path / "results"
    for name in published:
        if name.split("/")[0] in RECORDS:
            (results / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / "results" / name, results / name)
    monkeypatch.chdir(tmp_path)
    report.main(["--profile", "cpu"])
    made = {str(path.relative_to(results)) for path in results.rglob("*") if path.is_file()}
    assert made == published
    assert [name for name in sorted(made) if (results / name).read_bytes() != (REPOSITORY / "results" / name).read_bytes()] == []


def test_every_picture_names_its_records():
    # those of the benchmark stand in a page that names its conditions
    pictures = [name for name in committed() if name.endswith(".svg") and not name.startswith("bench/")]
    assert pictures
    for name in pictures:
        words = " ".join(re.sub("<[^>]*>", " ", (REPOSITORY / "results" / name).read_text()).split())
        trains_the_same_in_every_profile = re.search("figure4b-(breakdown|whatif)", name)
        profile = "" if trains_the_same_in_every_profile else "profile cpu; "
        assert re.search(rf"From the records: {profile}commit [0-9a-f]{{12}}.* finished 20\d\d-\d\d-\d\d", words), name


def test_no_published_file_is_larger_than_a_megabyte():
    assert [name for name in committed() if (REPOSITORY / "results" / name).stat().st_size > 2**20] == []


def test_every_record_matches_its_cell_in_conf_table():
    folder = REPOSITORY / "results" / "records"
    records = {REPOSITORY / "results" / name for name in committed() if name.startswith("records/") and name.endswith(RUN)}
    seeds = max(int(path.parent.name.removeprefix("seed")) for path in records)
    for profile, name in {path.parts[-5:-3] for path in records}:
        kept = [job for job in tables.read(name, profile).jobs(seeds, folder) if job.record / RUN in records]
        assert [job.name for job in kept if not job.done] == []
        records -= {job.record / RUN for job in kept}
    assert records == set()  # a record without a cell


def test_every_record_is_of_committed_code_and_every_run_is_finished():
    published = [REPOSITORY / "results" / name for name in committed()]
    records = [
        path for path in published if path.name == RUN or (path.parent.name in ("bench", "advisor") and path.suffix == ".json")
    ]
    assert len(records) > 30
    for path in records:
        record = read_json(path)
        assert all(part["commit"] and part["dirty"] is False for part in sittings_of(record)), path
        assert path.name != RUN or "finished" in record, path
