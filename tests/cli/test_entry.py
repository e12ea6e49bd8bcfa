"""The words before a command starts: help, versions, mistakes, completion."""

import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.suggestions import nearest
from pufferfish_bench.cli import main, next_steps, pages
from pufferfish_bench.cli.commands import COMMANDS
from pufferfish_bench.config.choices import choices
from tests.support.commands import SMALL
from tests.support.repository import REPOSITORY, configured

WIDTH, HEIGHT = 100, 45
IN_ONE_PROCESS = """
import contextlib, io, sys
from pufferfish_bench.cli import main
from pufferfish_bench.cli.commands import COMMANDS
for words in ([], *([name, option] for name in COMMANDS for option in ("--help", "--version"))):
    sys.argv = ["pufferfish", *words]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main.main()
    print(said.getvalue(), end="\\0")
    if not words:
        assert not {"torch", "hydra", "omegaconf", "matplotlib"} & {*sys.modules}
assert not {"torch", "matplotlib"} & {*sys.modules}, "too much is imported for help"
"""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """The exit code and all output of `pufferfish WORDS`."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["pufferfish", *words])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        capsys.readouterr()
        try:
            main.main()
        except SystemExit as exit:
            return exit.code or 0, "".join(capsys.readouterr())
        return 0, "".join(capsys.readouterr())

    return call


def test_help_and_version_of_every_command_have_one_style_and_import_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    done = subprocess.run([sys.executable, "-c", IN_ONE_PROCESS], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listing, *answers = done.stdout.split("\0")[:-1]
    for name, command in COMMANDS.items():
        assert f"\n  {name} " in listing
        assert command.summary in listing
    for name, text, version in zip(COMMANDS, answers[::2], answers[1::2], strict=True):
        assert text.startswith(f"Usage: pufferfish {name}"), text
        assert "\nOptions:\n" in text
        assert "  -h, --help" in text
        assert max(map(len, text.splitlines())) <= WIDTH
        assert version == "pufferfish-bench 0.2.0\n"
    run = answers[0]
    assert run.count("\n") <= HEIGHT
    assert sum("  # " in line for line in run.splitlines()) == 5  # examples


@pytest.mark.parametrize("columns", [80, 200])
def test_help_is_as_wide_as_the_terminal_and_not_too_wide(said: Callable, monkeypatch: pytest.MonkeyPatch, columns: int):
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in COMMANDS:
        lines = said(name, "--help")[1].splitlines()
        prose = [
            line for line in lines if not line.startswith(("  pufferfish", "  torchrun", "Usage:"))
        ]  # commands are not broken
        assert max(map(len, prose)) <= min(columns, WIDTH), name


@pytest.mark.parametrize("name", ["compare", "tables", "netlab"])
def test_examples_have_the_name_under_which_the_command_was_called(said: Callable, name: str):
    text = said(name, "--help")[1]
    assert f"  pufferfish {name}" in text
    assert f"pufferfish-{name}" not in text


def test_the_help_of_run_has_every_group_that_a_user_chooses_from_and_the_right_defaults():
    text = pages.page("run").text()
    flat = " ".join(text.split())
    for group in ("model", "method", "dataset", "reducer", "profile", "schedule", "method/trigger"):
        assert f"{group} {', '.join(configured(group))}" in flat
    assert not {"recipe", "table"} & {group.split("/")[0] for group in choices([REPOSITORY / "conf"])}
    defaults = yaml.safe_load((REPOSITORY / "conf" / "config.yaml").read_text())["defaults"]
    chosen = {key: value for one in defaults if isinstance(one, dict) for key, value in one.items()}
    for group in ("model", "method", "profile"):
        assert f"{group}={chosen[group]}" in text.split("Groups (default: ")[1].split(";")[0]


def test_the_help_has_the_users_own_choices(tmp_path: Path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "my_net.yaml").touch()
    assert ", my_net, " in pages.page("run", ["--config-dir", str(tmp_path)]).text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("comapre", "command comapre is not known (did you mean compare?)"),
        ("--versoin", "option --versoin is not known (did you mean --version?)"),
        ("compare --polt", "option --polt is not known (did you mean --plot"),
        ("whatif --bandwith 1gbit", "did you mean --bandwidth?"),
        ("report tabel4", "table or figure 'tabel4' is not known (did you mean table4"),
        ("report --profile smok", "profile=smok is not known (did you mean smoke?)"),
        ("tables figure_bugdet", "did you mean figure_budget"),
        ("tables table8 --profile smoke --cells hybird_with_warmup", "did you mean hybrid_with_warmup"),
        ("bench svdd", "benchmark svdd is not known (did you mean svd?)"),
        ("bench svd --quik", "did you mean --quick?"),
        ("netlab --host 2", "did you mean --hosts?"),
        ("breakdown --phas", "did you mean --phase?"),
        ("advisor-check --model x", "did you mean --models"),
        ("export --marge", "did you mean --merge?"),
        ("export rum=x out.safetensors", "there is no setting rum=x; give run=DIR"),
        ("translate --alow x", "did you mean --allow?"),
        ("run model=resnet81", "model=resnet81 is not known (did you mean resnet18"),
        ("run method/trigger=platau", "did you mean plateau?"),
        ("run method/triger=plateau", "there is no group method/triger (did you mean method/trigger"),
        ("run method/trigger=plateau", "none of the chosen parts has a method/trigger in this place"),
        ("run modle.net.width=1", "did you mean model.net.width=1?"),
        ("run schedul.learning_rat=1", "did you mean schedule.learning_rate=1?"),
        ("run ~epocs", "there is no setting epocs to remove (did you mean epochs?)"),
        ("run hydra.swep.dir=x", "there is no setting hydra.swep.dir (did you mean sweep"),
        ("run resnet18", "'resnet18' cannot be read as KEY=VALUE: did you mean model=resnet18?"),
        ("run resnt18", "did you mean model=resnet18?"),
        ("table4", "did you mean pufferfish tables table4?"),
        ("train", "did you mean pufferfish run?"),
        ("--shell-completion install=bash", "each command has a completion of its own"),
        ("run --shell-completion install", "--shell-completion needs an action: install=bash"),
        ("run --shell-completion install=ksh", "--shell-completion needs an action: install=bash"),
        ("run help", "did you mean --help?"),
        ("tables table44", "did you mean table4"),
        ("run recipe=demo", "recipe=demo: the model and the profile choose the recipe"),
        ("export results/runs/x out.safetensors", "did you mean run=results/runs/x?"),
        ("run epochs", "did you mean epochs=VALUE?"),
        ("run --epochs 3", "there is no option --epochs; a setting has no dashes in front: epochs=VALUE"),
        ("run --model=lstm", "a setting has no dashes in front: model=lstm"),
        ("run --mulitrun", "did you mean --multirun"),
        ("describe modle=vgg19", "did you mean model=vgg19?"),
        ("advise netwrk=1gbit", "did you mean network=1gbit?"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence_that_names_what_is_near(said: Callable, words: str, sentence: str):
    code, answer = said(*shlex.split(words))
    assert code == 2
    assert sentence in answer
    assert answer.startswith("error: ")
    assert answer.count("\n") == 1


@given(st.sets(st.text("abcdef_1", min_size=3, max_size=12), min_size=1, max_size=8), st.data())
def test_a_name_with_one_letter_left_out_suggests_only_known_names_and_finds_a_single_one(names: set[str], data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(names)))
    place = data.draw(st.integers(0, len(name) - 1))
    mistyped = name[:place] + name[place + 1 :]
    assert set(nearest(mistyped, names)) <= names
    assert nearest(mistyped, [name]) == [name]
    assert nearest(name.upper(), names)[:1] == [name]


def test_all_settings_are_printed_for_the_chosen_groups(said: Callable):
    code, text = said("run", "model=lstm", "profile=smoke", "--help-settings")
    assert code == 0
    settings = yaml.safe_load(text)
    assert settings["model"]["net"]["hidden"]
    assert "schedule" in settings


def test_bash_completes_choices_and_keys(tmp_path: Path):
    """A real interactive bash on a terminal, with Tab."""
    scripts = str(Path(sys.executable).parent)
    home = {"PATH": f"{scripts}:{os.environ['PATH']}", "PS1": "$ ", "TERM": "dumb", "HOME": str(tmp_path)}
    leader, follower = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"], cwd=tmp_path, env=home, stdin=follower, stdout=follower, stderr=follower,
        start_new_session=True,
    )  # fmt: skip
    os.close(follower)

    def answer(typed: str, wanted: str) -> bool:
        os.write(leader, typed.encode())
        seen, end = "", time.monotonic() + 120
        while wanted not in seen and time.monotonic() < end:
            if select.select([leader], [], [], 1)[0]:
                seen += os.read(leader, 65536).decode(errors="replace")
        return wanted in seen

    try:
        assert answer('eval "$(pufferfish-run --shell-completion install=bash)"; echo read""y\n', "ready")
        assert answer("pufferfish-run model=lst\t", "model=lstm")
        assert answer("\x15pufferfish-run schedule.learn\t", "schedule.learning_rate=")
    finally:
        shell.kill()
        shell.wait()
        os.close(leader)


def test_completion_installed_by_the_single_entry_is_that_of_the_command():
    entry = Path(sys.executable).with_name("pufferfish")
    script = subprocess.run(
        [entry, "run", "--shell-completion", "install=bash"], capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r" complete -o .* (\S+)$", script, flags=re.MULTILINE) == ["pufferfish-run"]


def test_make_suggests_the_nearest_target():
    words = ["make", "-s", "-C", REPOSITORY, "tabel4", f"BIN={Path(sys.executable).parent}"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "'tabel4' is not known (did you mean table4" in done.stderr


def test_the_command_that_resumes_is_the_one_that_was_typed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("PUFFERFISH_DATA", raising=False)
    monkeypatch.delenv("PUFFERFISH_CONF", raising=False)
    for program, start in {"/bin/pufferfish-run": "pufferfish-run", "/bin/pufferfish run": "pufferfish run"}.items():
        monkeypatch.setattr(sys, "argv", [program, "run_dir='a b'", "epochs=2"])
        assert shlex.split(next_steps.this_command()) == [*start.split(), "run_dir='a b'", "epochs=2"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert next_steps.this_command().startswith("torchrun --standalone --nproc-per-node 2 -m pufferfish_bench ")
    monkeypatch.setenv("WORLD_SIZE", "4")  # two machines: one command cannot start both
    assert next_steps.this_command() is None


def test_what_a_run_prints_at_its_end_works_when_pasted(command: Callable, tmp_path: Path):
    done = command(*SMALL, "epochs=1", "dataset.train_images=32", "run_dir='my \"runs\"'")
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("next:").strip() for line in done.stdout.split("next:")[1].splitlines()]
    compare, describe, curves = lines
    for line, wanted in {compare: "times as fast", describe: "no layer was changed"}.items():
        pasted = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True)
        assert pasted.returncode == 0, pasted.stderr
        assert wanted in pasted.stdout
    *_, folder = shlex.split(curves, comments=True)
    assert list((tmp_path / folder).glob("events*"))
