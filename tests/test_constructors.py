"""What is built from a record is what this package or its user knows: a stranger's record runs nothing."""

import contextlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf

from pufferfish_bench import checkpoints, constructors, main, translate
from pufferfish_bench.constructors import KNOWN, REDUCERS, TRIGGERS
from pufferfish_bench.errors import InputError
from pufferfish_bench.records import RUN, VOCABULARY, read_json, write_json
from pufferfish_bench.settings import config_dir
from tests.conftest import Command

TRANSFORMER = {
    "_target_": "pufferfish_bench.models.transformer.Transformer", "vocabulary": 66, "width": 16, "heads": 2, "inner": 32,
    "layers": 1, "dropout": 0.0, "positions": 40, "padding": 0,
}  # fmt: skip
PLAIN = {"_target_": "pufferfish_bench.core.Method"}


class Touching:
    """A pickle that leaves a file when somebody loads it."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def attacks(folder: Path) -> dict[str, Any]:
    """Settings that would leave the file `ran` in a folder if they were built."""
    ran = folder / "ran"
    (folder / "evil.pkl").write_bytes(pickle.dumps(Touching(ran)))
    touch = ["touch", str(ran)]
    replace = {"_target_": "pufferfish_bench.records.replace_file", "path": {"_target_": "pathlib.Path", "_args_": [str(ran)]}}
    execute = {"_target_": "builtins.exec", "_args_": [f"open({str(ran)!r}, 'w')"]}
    return {
        "configure": {"_target_": "pufferfish_bench.namespaces.configure", "command": " ".join(touch)},
        "attend": {"_target_": "pufferfish_bench.reproduce.jobs.attend", "words": touch},
        "replace_file": replace | {"text": "x"},
        "load": {"_target_": "torch.load", "f": str(folder / "evil.pkl"), "weights_only": False},
        "exec": execute,
        "instantiate": {"_target_": "hydra.utils.instantiate", "config": execute},
        "system": {"_target_": "os.system", "command": f"touch {ran}"},
    }


def foreign(folder: Path, *, model: Any = TRANSFORMER, method: Any = PLAIN) -> Path:
    """A finished run of a stranger, as far as anybody can see."""
    settings = {"name": "x", "epochs": 2, "model": model, "method": method}
    settings["dataset"] = {"test_batch_size": 10, "beam": 2, "alpha": 0.7, "longest": 9}
    folder.mkdir()
    (folder / RUN).write_text(json.dumps({"settings": settings, "finished": "2026-01-01"}))
    (folder / VOCABULARY).write_text("\n" * 66)
    return folder


def nestings(attack: Any) -> dict[str, dict[str, Any]]:
    """Where in a record's model and method an attack may stand."""
    trigger = {"_target_": "pufferfish_bench.triggers.plateau", "_partial_": True, "patience": 1, "improvement": 0.1}
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
def test_a_record_that_would_run_something_is_refused_and_nothing_is_run(tmp_path: Path, name: str):
    attack = attacks(tmp_path)[name]
    for place, changed in nestings(attack).items():
        folder = foreign(tmp_path / place, **changed)
        target = attack["_target_"]
        with pytest.raises(InputError, match=f"{target}, which .* give --allow {target}"):
            translate.main([f"run={folder}", "eins"])
        with pytest.raises(InputError, match=target):
            translate.restored(folder, read_json(folder / RUN))
        assert not (tmp_path / "ran").exists()
    if name not in ("exec", "instantiate", "system"):  # Hydra itself refuses the worst of them
        with contextlib.suppress(HydraException):  # torch does not like the end of that file
            main.build(OmegaConf.create(attack))
        assert (tmp_path / "ran").exists()  # it is no empty threat


def test_the_refusal_is_one_sentence_and_code_2_and_imports_nothing_of_it(
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
    assert complaint.startswith("error: the record's model._target_ is stranger.Net, which ")
    assert complaint.endswith("if you trust it, give --allow stranger.Net\n")
    assert complaint.count("\n") == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("hidden", ["${x}", "${oc.env:HOME}", "\\${x}", "a${oc.decode:b}c"])
def test_a_reference_in_a_record_is_refused_wherever_it_stands(tmp_path: Path, hidden: str):
    for place, changed in {
        "target": {"model": TRANSFORMER | {"_target_": hidden}},
        "argument": {"model": TRANSFORMER | {"width": hidden, "x": "os.system"}},
        "list": {"method": PLAIN | {"_args_": [[hidden]]}},
        "key": {"method": PLAIN | {hidden: 1}},
    }.items():
        with pytest.raises(InputError, match=r"has a reference, which no run writes|does not say what it is"):
            translate.main([f"run={foreign(tmp_path / place, **changed)}", "eins"])


@pytest.mark.parametrize("target", [None, 7, ["os.system"], {"_target_": "os.system"}, "pufferfish_bench.models.transformer"])
def test_a_target_that_is_no_known_name_is_refused(tmp_path: Path, target: Any):
    with pytest.raises(InputError, match="the record's model"):
        translate.main([f"run={foreign(tmp_path / 'run', model=TRANSFORMER | {'_target_': target})}", "eins"])


def test_a_task_or_a_reducer_is_no_model():
    for name in (*KNOWN["dataset"], *REDUCERS, *TRIGGERS):
        with pytest.raises(InputError, match=r"model\._target_"):
            constructors.vet("model", {"_target_": name})


def test_all_that_conf_names_is_on_the_lists_and_nothing_else_is():
    def targets(found: Any) -> set[str]:
        inside = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
        own = {found["_target_"]} if isinstance(found, dict) and "_target_" in found else set()
        return own.union(*map(targets, inside))

    folders = {"model": "model", "method": "method", "reducer": "reducer", "dataset": "dataset"}
    named = {
        group: set().union(
            *(targets(OmegaConf.to_container(OmegaConf.load(path))) for path in (Path(config_dir()) / folder).rglob("*.yaml"))
        )
        for group, folder in folders.items()
    }
    named["dataset"] -= {"torch.zeros", "torch.tensor"}  # a sample: nobody builds one from a record
    named["method"] |= set(REDUCERS)  # the warm-up's own, named by its file
    assert named == {group: set(names) for group, names in KNOWN.items()}
    for names in KNOWN.values():
        for name in names:
            module, _, attribute = name.rpartition(".")
            assert callable(getattr(__import__(module, fromlist=[attribute]), attribute))


def test_a_net_of_ones_own_is_built_when_one_says_so(
    invoke: Command, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    settings = ("model=transformer", "profile=smoke", "run_dir=run", "epochs=1", "model.width=16", "dataset.train_pairs=100")
    assert invoke(*settings, "dataset.test_pairs=2").returncode == 0
    translate.main(["run=run", "eins", "zwei"])
    said = capsys.readouterr().out
    (tmp_path / "my_own_net.py").write_text(
        "from pufferfish_bench.models.transformer import Transformer\n\n\nclass Net(Transformer):\n    pass\n"
    )
    record = read_json(tmp_path / "run" / RUN)
    record["settings"]["model"]["_target_"] = "my_own_net.Net"
    write_json(tmp_path / "run" / RUN, record)
    with pytest.raises(InputError, match=r"give --allow my_own_net\.Net"):
        translate.main(["run=run", "eins"])
    with pytest.raises(InputError, match=r"give --allow my_own_net\.Net"):
        translate.main(["run=run", "--allow", "my_own_net", "eins"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    for words in (["--allow", "my_own_net.Net"], ["--allow=my_own_net.Net"]):
        translate.main(["run=run", *words, "eins", "zwei"])
        assert capsys.readouterr().out == said
    with pytest.raises(InputError, match="--allow wants the name"):
        translate.main(["run=run", "eins", "--allow"])

    # a checkpoint or a vocabulary that is of something else
    newest = max((tmp_path / "run" / "checkpoints").glob("*.pt"))
    state = checkpoints.read(newest)
    state["shared"]["operations"] = [{"layers": {"nope": {"rank": 1}}}]
    checkpoints.write(newest, state)
    with pytest.raises(InputError, match="does not fit its record: phase train begins with an operation"):
        translate.main(["run=run", "--allow", "my_own_net.Net", "eins"])
    (tmp_path / "run" / VOCABULARY).write_bytes(b"\xff\n")
    with pytest.raises(InputError, match="is not UTF-8"):
        translate.main(["run=run", "--allow", "my_own_net.Net", "eins"])
