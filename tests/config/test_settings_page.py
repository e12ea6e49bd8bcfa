"""docs/settings.md is what `make docs` writes, and the text of a config file has the settings that a YAML parser finds in it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pufferfish_bench.config.commented import HIDDEN, read_commented
from tests.support.repository import REPOSITORY

CONF = REPOSITORY / "conf"
FILES = [path for path in sorted(CONF.glob("**/*.yaml")) if path.parent.name != "table"]


def leaves(content: Any, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The settings that a parser finds, by dotted key; an empty dict, or one in braces, counts as a value."""
    found = {}
    for key, value in content.items():
        if key in HIDDEN:
            continue
        if isinstance(value, dict) and value:
            found |= leaves(value, (*above, key))
        else:
            found[".".join((*above, key))] = value
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CONF).as_posix())
def test_the_text_of_a_file_has_the_settings_and_values_that_a_parser_finds(path: Path):
    expected = leaves(yaml.safe_load(path.read_text()) or {})
    read = {}
    for setting in read_commented(path).settings:
        value = yaml.safe_load(setting.default) if "${" not in setting.default else setting.default
        if isinstance(value, dict) and value:
            read |= leaves(value, (setting.key,))
        elif setting.default or setting.key in expected:
            read[setting.key] = value
    assert read.keys() == expected.keys()
    for key, value in expected.items():
        if not isinstance(value, list) and not (isinstance(value, str) and "${" in value):
            assert read[key] == value, key


def test_comments_belong_to_their_settings(tmp_path: Path):
    file = tmp_path / "choice.yaml"
    file.write_text(
        "# @package _global_\n# What it is, and\n# how to try it\n#   pufferfish-run x=1\ndefaults:\n  - other\n  - _self_\n\n"
        "# Size: of everything\nnet:\n  width: 3   # in units:\n             # of ten\n  names: [a, '#b']\n\n# Rest\nlast: null\n"
    )
    found = read_commented(file)
    assert found.head == "What it is, and how to try it `pufferfish-run x=1`"
    assert (found.package, found.bases) == ("_global_", ["other"])
    assert [(s.key, s.default, s.meaning, s.section) for s in found.settings] == [
        ("net", "", "", "Size: of everything"),
        ("net.width", "3", "in units: of ten", "Size: of everything"),
        ("net.names", "[a, '#b']", "", "Size: of everything"),
        ("last", "null", "", "Rest"),
    ]


def test_the_page_in_docs_is_what_make_docs_writes():
    written = subprocess.run(
        [sys.executable, "-m", "pufferfish_bench.config.settings_page"], capture_output=True, text=True, check=True
    ).stdout
    assert (REPOSITORY / "docs/settings.md").read_text() == written, "conf/ has changed: run make docs"
