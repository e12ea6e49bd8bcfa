"""Only classes that this package or its user trusts are built from a record: an untrusted record cannot run code."""

import contextlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import translate
from pufferfish_bench.config import build, restore, trusted
from pufferfish_bench.records.files import RUN, VOCABULARY, read_json, write_json
from pufferfish_bench.records.reader import FORMAT
from pufferfish_bench.training import checkpoints
from tests.support.commands import Command

TRANSFORMER = {
    "_target_": "pufferfish_bench.models.transformer.Transformer", "vocabulary": 66, "width": 16, "heads": 2, "inner": 32,
    "layers": 1, "dropout": 0.0, "positions": 40, "padding": 0,
}  # fmt: skip
PLAIN = {"_target_": "pufferfish_bench.core.Method"}


class Touching:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def attacks(folder: Path) -> dict[str, Any]:
    """Settings that would create the file `ran` in a folder if they were built."""
    ran = folder / "ran"
    (folder / "evil.pkl").write_bytes(pickle.dumps(Touching(ran)))
    touch = ["touch", str(ran)]
    replace = {
        "_target_": "pufferfish_bench.records.files.replace_file",
        "path": {"_target_": "pathlib.Path", "_args_": [str(ran)]},
    }
    execute = {"_target_": "builtins.exec", "_args_": [f"open({str(ran)!r}, 'w')"]}
    return {
        "configure": {"_target_": "pufferfish_bench.distributed.lab.configure", "command": " ".join(touch)},
        "attend": {"_target_": "pufferfish_bench.paper.supervision.attend", "words": touch},
        "replace_file": replace | {"text": "x"},
        "load": {"_target_": "torch.load", "f": str(folder / "evil.pkl"), "weights_only": False},
        "exec": execute,
        "instantiate": {"_target_": "hydra.utils.instantiate", "config": execute},
        "system": {"_target_": "os.system", "command": f"touch {ran}"},
    }


def foreign(folder: Path, *, model: Any = TRANSFORMER, method: Any = PLAIN) -> Path:
    """An untrusted record that looks like a finished run."""
    settings = {"name": "x", "epochs": 2, "model": {"net": model}, "method": method}
    settings["dataset"] = {"test_batch_size": 10, "beam": 2, "alpha": 0.7, "longest": 9}
    folder.mkdir()
    (folder / RUN).write_text(json.dumps({"format": FORMAT, "settings": settings, "finished": "2026-01-01"}))
    (folder / VOCABULARY).write_text("\n" * 66)
    return folder


def nestings(attack: Any) -> dict[str, dict[str, Any]]:
    """The places in a record's model and method where an attack may be."""
    trigger = {"_target_": "pufferfish_bench.training.triggers.plateau", "_partial_": True, "patience": 1, "improvement": 0.1}
    pufferfish = {"_target_": "pufferfish_bench.methods.pufferfish.Pufferfish", "warmup_epochs": 1, "trigger": trigger}
    return {
        "model": {"model": attack},
        "method": {"method": attack},
        "partial": {"method": attack | {"_partial_": True}},
        "trigger": {"method": pufferfish | {"trigger": attack}},
        "inside the trigger": {"method": pufferfish | {"trigger": trigger | {"patience": attack}}},
        "reducer": {"method": pufferfish | {"warmup_reducer": attack}},
        "argument": {"model": TRANSFORMER | {"width": attack}},
        "list": {"model": TRANSFORMER | {"_args_": [1, [attack]]}},
        "object": {"model": TRANSFORMER | {"width": {"a": {"b": attack}}}},
    }


@pytest.mark.parametrize("name", ["configure", "attend", "replace_file", "load", "exec", "instantiate", "system"])
def test_a_record_that_would_run_code_is_refused_and_nothing_is_run(tmp_path: Path, name: str):
    attack = attacks(tmp_path)[name]
    for place, changed in nestings(attack).items():
        folder = foreign(tmp_path / place, **changed)
        target = attack["_target_"]
        with pytest.raises(InputError, match=f"{target}, which .* give --allow {target}"):
            translate.main([f"run={folder}", "eins"])
        with pytest.raises(InputError, match=target):
            restore.restored_model(folder, read_json(folder / RUN))
        assert not (tmp_path / "ran").exists()
    if name not in ("exec", "instantiate", "system"):  # Hydra itself refuses the worst of them
        with contextlib.suppress(HydraException):  # torch fails at the end of that file
            build.build("method", OmegaConf.create(attack))
        assert (tmp_path / "ran").exists()  # the attack works if it is not refused


def test_an_untrusted_record_is_refused_with_one_line_and_code_2_and_none_of_its_modules_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    (tmp_path / "stranger.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    foreign(tmp_path / "run", model={"_target_": "stranger.Net"})
    monkeypatch.setattr(sys, "argv", ["pufferfish-translate", "run=run", "eins"])
    with pytest.raises(SystemExit) as exit:
        translate.run()
    assert exit.value.code == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: the record's model.net._target_ is stranger.Net, which ")
    assert complaint.endswith("if you trust it, give --allow stranger.Net\n")
    assert complaint.count("\n") == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("hidden", ["${x}", "${oc.env:HOME}", "\\${x}", "a${oc.decode:b}c"])
def test_an_interpolation_in_a_record_is_refused_wherever_it_is(tmp_path: Path, hidden: str):
    for place, changed in {
        "target": {"model": TRANSFORMER | {"_target_": hidden}},
        "argument": {"model": TRANSFORMER | {"width": hidden, "x": "os.system"}},
        "list": {"method": PLAIN | {"_args_": [[hidden]]}},
        "key": {"method": PLAIN | {hidden: 1}},
    }.items():
        with pytest.raises(InputError, match=r"is a reference, which no run writes|has no _target_"):
            translate.main([f"run={foreign(tmp_path / place, **changed)}", "eins"])


@pytest.mark.parametrize("target", [None, 7, ["os.system"], {"_target_": "os.system"}, "pufferfish_bench.models.transformer"])
def test_a_target_that_is_not_a_known_name_is_refused(tmp_path: Path, target: Any):
    with pytest.raises(InputError, match="the record's model"):
        translate.main([f"run={foreign(tmp_path / 'run', model=TRANSFORMER | {'_target_': target})}", "eins"])


def test_a_task_or_a_reducer_is_refused_as_a_model():
    for name in trusted.known("dataset") | trusted.known("reducer"):
        with pytest.raises(InputError, match=r"model\._target_"):
            trusted.vet("model", {"_target_": name})


def test_conf_names_constructors_of_this_package_and_of_torch_only_and_all_of_them_exist():
    for name in frozenset().union(*map(trusted.known, trusted.GROUPS)):
        module, _, attribute = name.rpartition(".")
        assert module.split(".")[0] in ("pufferfish_bench", "torch")
        assert callable(getattr(__import__(module, fromlist=[attribute]), attribute))


def test_what_conf_names_for_a_group_is_trusted_there_and_nowhere_else():
    lstm, powersgd = "pufferfish_bench.models.lstm.LanguageModel", "pufferfish_bench.reducers.powersgd.PowerSGD"
    assert {group for group in trusted.GROUPS if lstm in trusted.known(group)} == {"model"}
    assert {group for group in trusted.GROUPS if powersgd in trusted.known(group)} == {"reducer", "method"}
    for group in trusted.GROUPS:
        assert "pufferfish_bench.distributed.lab.configure" not in trusted.known(group)


def test_a_users_own_net_is_built_only_when_it_is_allowed(
    invoke: Command, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    settings = ("model=transformer", "profile=smoke", "run_dir=run", "epochs=1", "model.net.width=16", "dataset.train_pairs=100")
    assert invoke(*settings, "dataset.test_pairs=2").returncode == 0
    translate.main(["run=run", "eins", "zwei"])
    said = capsys.readouterr().out
    (tmp_path / "my_translator.py").write_text(
        "from pufferfish_bench.models.transformer import Transformer\n\n\nclass Net(Transformer):\n    pass\n"
    )
    record = read_json(tmp_path / "run" / RUN)
    record["settings"]["model"]["net"]["_target_"] = "my_translator.Net"
    write_json(tmp_path / "run" / RUN, record)
    with pytest.raises(InputError, match=r"give --allow my_translator\.Net"):
        translate.main(["run=run", "eins"])
    with pytest.raises(InputError, match=r"give --allow my_translator\.Net"):
        translate.main(["run=run", "--allow", "my_translator", "eins"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    for words in (["--allow", "my_translator.Net"], ["--allow=my_translator.Net"]):
        translate.main(["run=run", *words, "eins", "zwei"])
        assert capsys.readouterr().out == said
    with pytest.raises(InputError, match="--allow needs the name"):
        translate.main(["run=run", "eins", "--allow"])

    # a checkpoint or a vocabulary that does not belong to the run
    newest = max((tmp_path / "run" / "checkpoints").glob("*.pt"))
    state = checkpoints.read(newest)
    state["shared"]["operations"] = [{"layers": {"nope": {"rank": 1}}}]
    checkpoints.write(newest, state)
    with pytest.raises(InputError, match="does not match its record: phase train begins with an operation"):
        translate.main(["run=run", "--allow", "my_translator.Net", "eins"])
    (tmp_path / "run" / VOCABULARY).write_bytes(b"\xff\n")
    with pytest.raises(InputError, match="is not UTF-8"):
        translate.main(["run=run", "--allow", "my_translator.Net", "eins"])
