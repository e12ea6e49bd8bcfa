"""docs/extending.md, executed as it is printed: every file is written, and every command is run."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from PIL import Image

from tests.support.repository import REPOSITORY
from tests.support.shell import Shell, printed

PAGE = (REPOSITORY / "docs" / "extending.md").read_text()
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
COMMANDS = printed(PAGE)
GROUPS = ("model", "dataset", "method", "reducer", "schedule", "optimizer", "table")

pytestmark = pytest.mark.xdist_group("extending")  # the commands share their folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of the page, and data of the user's own."""
    here = tmp_path_factory.mktemp("extending")
    for path, content in files().items():
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_text(content)
    random = numpy.random.default_rng(0)
    for name in ("cats", "dogs", "fish"):
        (here / "my_pictures" / name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=numpy.uint8)).save(
                here / "my_pictures" / name / f"{number}.png"
            )
    words = [f"word{number}" for number in random.integers(0, 20, 600)]
    lines = [" ".join(words[start : start + 6]) for start in range(0, 600, 6)]
    (here / "my_text.txt").write_text("\n".join(lines))
    (here / "my_text.fr").write_text("\n".join(lines))
    (here / "my_text.en").write_text("\n".join(line.upper() for line in lines))
    yield here
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


def files() -> dict[str, str]:
    """Every fenced block whose first line is a comment with a path, by that path."""
    found = {}
    for language, block in FENCES:
        if language:
            path = re.match(r"# (\S+\.(?:py|yaml))\n", block)
            assert path, f"this block names no file: {block}"
            found[path[1]] = block
    return found


@pytest.fixture
def shell(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Shell:
    """Runs the commands in the folder."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("COLUMNS", "160")
    return Shell(monkeypatch, capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_runs_as_printed(shell: Shell, folder: Path, command: str):
    said = shell(command)
    if "pufferfish-describe" in command:
        assert "not factorised" in said
        assert "totals" in said
    elif "pufferfish tables" in command:
        table = (folder / "results" / "tables" / "smoke" / "freezing.md").read_text()
        assert "Freezing all layers but the head" in table
        assert "freezing" in (folder / "results" / "report-smoke.html").read_text()
        records = [json.loads(path.read_text()) for path in folder.glob("results/records/smoke/freezing/*/seed1/run.json")]
        assert sorted(bool(record["operations"]) for record in records) == [False, True]
    else:
        record = json.loads((Path(re.search(r"->  (\S+)", said)[1]) / "run.json").read_text())
        assert record["summary"]["epochs"] == record["settings"]["epochs"]
        if "method=pufferfish" in command:
            assert record["operations"][0]["layers"]
        if "torchrun" in command:
            assert record["operations"][0]["note"] == "the head trains on"
            assert record["summary"]["trainable_parameters"] == 17 * 10 < record["summary"]["parameters"]
            assert record["summary"]["bytes_per_step"] == 4 * (17 * 10 // 2)


def test_the_page_has_an_example_of_everything_that_can_be_added():
    own = {path.split("/")[1] for path in files() if path.startswith("my_conf/")}
    assert own == set(GROUPS)
    used = " ".join(COMMANDS) + " ".join(files().values())
    for path in files():
        name = Path(path).stem
        assert re.search(rf"[= ]{name}\b", used), f"no command uses {path}"
    for needed in ("torchvision", "timm", "hf_decoder", "hf_encoder", "image_folder", "text_file", "parallel_text"):
        assert needed in used


def test_the_readme_points_to_the_page():
    assert "(docs/extending.md)" in (REPOSITORY / "README.md").read_text()
    for link in re.findall(r"\]\((\.\./[^)#]+)\)", PAGE):
        assert (REPOSITORY / "docs" / link).exists(), link
