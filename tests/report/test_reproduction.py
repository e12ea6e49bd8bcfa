"""The report on the paper's tables: every format shows what the records say, and the same records give the same bytes."""

import csv
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import report as command
from pufferfish_bench.paper import outcome, tables, verdicts
from pufferfish_bench.paper.numbers import paper_numbers
from pufferfish_bench.records.files import read_json, write_json
from pufferfish_bench.report import claim_sheets, output, page_tables, reproduction
from tests.support.records import ablation, plant_company, report, write_cell, write_counted, write_record


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read(results: Path, name: str, profile: str = "cpu") -> outcome.Outcome:
    return outcome.read(tables.read(name, profile), results / "records", paper_numbers())


def test_the_same_records_give_the_same_bytes(tmp_path: Path):
    one, other = ablation(tmp_path / "one"), tmp_path / "elsewhere" / "other"
    shutil.copytree(one, other)
    for results in (one, other, other):
        report(results)
    assert files(one) == files(other)
    made = {name for name in files(one) if not name.startswith("records")}
    expected = {"tables/cpu/table8" + ending for ending in (".md", ".csv", "-relations.csv", ".png", ".svg")}
    assert made == expected | {"report-cpu.html", "tables/cpu/claims.md"}


def test_the_csv_holds_the_papers_numbers_and_the_mean_and_spread_of_the_records(tmp_path: Path):
    report(ablation(tmp_path))
    rows = {(row["cell"], row["quantity"]): row for row in csv.DictReader((tmp_path / "tables/cpu/table8.csv").open())}
    assert len(rows) == 8
    row = rows["hybrid_with_warmup", "test_accuracy"]
    assert [float(row[key]) for key in ("paper", "paper_deviation", "ours", "ours_deviation", "seeds")] == [
        94.87,
        0.21,
        80.5,
        0.5,
        3,
    ]
    assert (row["difference"], row["verdict"]) == ("", verdicts.OTHER_PROFILE)


def test_a_column_is_text_if_no_cell_in_it_has_a_value():
    slower, numbers = output.Cell("< 3 Gbit/s", 3e9), (output.Cell("1.5", 1.5), output.Cell("+2", 2.0))
    rows = [["1 host", "text", "always", "", numbers[0]], ["2 hosts", "", slower, "", numbers[1]]]
    assert output.Sheet("", ["run", "verdict", "ahead", "nothing", "number"], rows).text_columns == [0, 1]
    assert output.Sheet("", ["run", "number"], []).markdown().splitlines()[3] == "| :-- | --: |"


def test_p_values_are_corrected_for_the_claims_of_all_tables(tmp_path: Path):
    def p_values(table: str) -> list[tuple[float, float]]:
        rows = csv.DictReader((tmp_path / f"tables/cpu/{table}-relations.csv").open())
        return [(float(row["p"]), float(row["p_holm"])) for row in rows if row["p"]]

    report(ablation(tmp_path))
    (smaller, larger) = sorted(p_values("table8"))
    assert smaller[1] == pytest.approx(2 * smaller[0])  # two claims with a test
    assert larger[1] == pytest.approx(max(larger[0], smaller[1]))
    hybrid = {"hybrid_without_warmup": (50, 60, 70), "hybrid_with_warmup": (60, 70, 80)}  # a difference without spread: no test
    ablation(tmp_path, table="table22", accuracies_of={"vanilla": (80, 81, 82), "low_rank": (51, 59, 72), **hybrid})
    report(tmp_path)
    (added,) = p_values("table22")
    assert added[0] > larger[0]
    assert sorted(p_values("table8"))[0][1] == pytest.approx(3 * smaller[0])  # three claims now


def test_one_seed_under_the_papers_profile_is_tested_by_the_papers_spread(tmp_path: Path):
    accuracies = {"vanilla": [95.0], "low_rank": [92.0], "hybrid_without_warmup": [93.9], "hybrid_with_warmup": [94.0]}
    for profile in ("paper", "cpu"):
        ablation(tmp_path, profile, accuracies_of=accuracies)
    of_hybrid, of_warmup, _ = read(tmp_path, "table8", "paper").claims
    assert of_hybrid.judgement.verdict == verdicts.HOLDS  # 1.9 points; the paper's spread is hypot(0.19, 0.45) = 0.49
    assert of_warmup.judgement.verdict == verdicts.ALIKE
    assert {claim.judgement.verdict for claim in read(tmp_path, "table8").claims[:2]} == {verdicts.ONE_SEED}  # another experiment
    assert read(tmp_path, "table5", "paper").claims[0].judgement.verdict == verdicts.NOT_RUN


def test_every_claim_gets_a_verdict_also_where_no_difference_is_significant(tmp_path: Path):
    report(ablation(tmp_path))
    rows = list(csv.DictReader((tmp_path / "tables/cpu/table8-relations.csv").open()))
    assert [row["verdict"] for row in rows] == [verdicts.ALIKE, verdicts.HOLDS, verdicts.NO_SPREAD]
    assert float(rows[1]["ours"]) == pytest.approx(80.5 - 71.0)  # points of accuracy, not a factor
    assert float(rows[1]["paper"]) == pytest.approx(94.87 - 93.92)  # from the paper's two figures
    text = (tmp_path / "tables/cpu/table8.md").read_text()
    assert verdicts.ALIKE in text
    assert "| :-- | :-- | --: | --: | --: | --: | :-- |" in text  # words to the left, numbers to the right
    assert f"| hybrid with warmup | test accuracy, % | 94.87 ± 0.21 | 80.50 ± 0.50 | 3 |  | {verdicts.OTHER_PROFILE} |" in text


def test_the_csv_has_the_margin_of_a_claim(tmp_path: Path):
    write_cell(tmp_path, "cpu/table2/vanilla", (100.0, 101.0), metric="val_ppl")
    report(tmp_path)
    rows = csv.DictReader((tmp_path / "tables/cpu/table2-relations.csv").open())
    assert [(float(row["margin"]), row["margin_is_share"]) for row in rows] == [(0.02, "True")] * 3 + [(0.0, "False")]


def test_one_sheet_has_all_claims_with_a_verdict(tmp_path: Path):
    ablation(tmp_path)
    write_cell(tmp_path, "cpu/table22/low_rank", (1.0, 2.0))
    write_cell(tmp_path, "cpu/table22/hybrid_without_warmup", (1.5, 2.5))
    there = [read(tmp_path, name) for name in ("table8", "table22")]
    sheet = claim_sheets.of_report(there)
    assert [row[0].text for row in sheet.rows] == ["Table 8"] * 3 + ["Table 22"] * 3  # also those that were not run
    assert sheet.rows[1] == [output.Cell("Table 8"), *reproduction.sheets(there[0])[1].rows[1]]
    assert [row[-1].text for row in sheet.rows[4:]] == [verdicts.NOT_RUN] * 2
    assert sheet.note.startswith("6 claims: 4 not tested, 1 no significant difference, 1 reproduced. From the records. Table 8: ")


def test_the_sheet_of_claims_has_every_claim_of_every_table_whatever_was_run(tmp_path: Path):
    report(ablation(tmp_path))
    lines = (tmp_path / "tables/cpu/claims.md").read_text().splitlines()
    shown = [line for line in lines if line.startswith(("| Table ", "| Figure "))]
    relations = [(name, relation) for name in tables.names() for relation in tables.read(name, "cpu").relations]
    # a claim over bandwidth is tested at several rates, and is one row
    claimed = list(dict.fromkeys((name, replace(relation, bits=None).label) for name, relation in relations))
    assert len(shown) == len(claimed) < len(relations)
    assert sorted(line.split(" | ")[1] for line in shown) == sorted(label for _, label in claimed)
    not_run = [line.split(" | ")[1] for line in shown if verdicts.NOT_RUN in line]
    assert 0 < len(not_run) < len(shown)
    assert all(verdicts.NOT_RUN in line for line in shown[-len(not_run) :])  # what was not run comes last


def test_the_papers_profile_is_compared(tmp_path: Path):
    write_cell(tmp_path, "paper/table8/hybrid_with_warmup", (94.7, 94.9, 95.0))
    write_cell(tmp_path, "paper/table8/low_rank", (90.0, 90.1, 90.2))
    found = {(f.cell.name, f.name): f.verdict for f in read(tmp_path, "table8", "paper").figures}
    assert found["hybrid_with_warmup", "test_accuracy"] == verdicts.WITHIN
    assert found["low_rank", "test_accuracy"] == verdicts.WORSE
    assert found["hybrid_without_warmup", "test_accuracy"] == verdicts.NOT_RUN
    assert f"| 94.87 ± 0.21 | 94.87 ± 0.15 | 3 | -0.00 | {verdicts.WITHIN} |" in reproduction.markdown(
        read(tmp_path, "table8", "paper")
    )


def test_counts_are_compared_whatever_the_profile(tmp_path: Path):
    write_counted(tmp_path, "cpu/table4/vgg19_pufferfish_counted", parameters=8370634, macs=1, macs_as_in_paper=289953792)
    write_counted(tmp_path, "cpu/table4/vgg19_vanilla_counted", parameters=20560331, macs=1, macs_as_in_paper=399267840)
    found = {(f.cell.name, f.name): f.verdict for f in read(tmp_path, "table4").figures}
    assert found["vgg19_pufferfish_counted", "parameters"] == verdicts.EQUAL
    assert found["vgg19_pufferfish_counted", "macs"] == verdicts.EQUAL
    assert found["vgg19_vanilla_counted", "parameters"] == verdicts.DIFFERENT


def test_the_verdict_on_a_time_names_the_machine_that_it_was_measured_on(tmp_path: Path):
    write_cell(tmp_path, "paper/table6/vgg19_vanilla", (1, 1), seconds=30.0)
    write_cell(tmp_path, "paper/table6/vgg19_pufferfish", (1, 1), seconds=20.0)
    found = read(tmp_path, "table6", "paper")
    times = {figure.full_verdict for figure in found.figures if figure.quantity.is_time and figure.ours}
    (machine,) = outcome.machines(found.records["vgg19_vanilla"])
    assert times
    assert all(verdict.endswith(f") on {machine}") for verdict in times)
    assert all(page_tables.colour(verdict) in ("good", "bad") for verdict in times)
    assert (found.claims[0].ours, found.claims[0].paper) == (1.5, 1.23)


def test_times_of_two_machines_are_not_compared(tmp_path: Path):
    write_cell(tmp_path, "cpu/table6/vgg19_vanilla", (1, 1), seconds=30.0)
    write_cell(tmp_path, "cpu/table6/vgg19_pufferfish", (1, 1), seconds=20.0, device="another")
    assert read(tmp_path, "table6").claims[0].judgement.verdict == verdicts.TWO_MACHINES
    for cell in ("vanilla", "pufferfish"):  # each seed has its machine
        for seed, device in ((1, "one"), (2, "another")):
            write_record(tmp_path / f"records/cpu/table6/resnet18_{cell}/seed{seed}", device=device)
    assert read(tmp_path, "table6").claims[1].judgement.verdict == verdicts.TWO_MACHINES


def test_times_with_more_workers_than_cores_are_not_compared_but_those_of_several_machines_or_gpus_are(tmp_path: Path):
    machines = {2: None, 4: None, 8: {"workers": 2}, 16: {"kind": "cuda", "workers": 4}}
    for workers, hardware in machines.items():
        for cell, seconds in (("vanilla", 30.0), ("pufferfish", 20.0)):
            for seed in (1, 2, 3):
                folder = tmp_path / f"records/cpu/figure4c/{cell}_{workers:02}/seed{seed}"
                write_record(folder, seconds=seconds + seed / 10, workers=workers, hardware=hardware)
    found = [claim.judgement for claim in read(tmp_path, "figure4c").claims]
    assert [judgement.verdict for judgement in found] == [verdicts.HOLDS, verdicts.CROWDED, verdicts.HOLDS, verdicts.HOLDS]
    assert found[1].p is None


def test_times_measured_beside_other_processes_are_marked_and_are_not_tested(tmp_path: Path):
    for seed in (1, 2, 3):
        for cell, seconds in (("vanilla", 30.0), ("pufferfish", 20.0)):
            for net in ("vgg19", "resnet18"):
                run = tmp_path / f"records/cpu/table6/{net}_{cell}/seed{seed}"
                write_record(run, seconds=seconds + seed / 10)
                plant_company(run, 0.5 if (net, cell, seed) == ("vgg19", "pufferfish", 2) else 0.1)
    (found,) = outcome.corrected([read(tmp_path, "table6")])
    of_vgg, of_resnet = (claim.judgement for claim in found.claims)
    assert of_vgg.verdict == "not tested (measured beside other processes)"
    assert (of_vgg.p, of_vgg.corrected_p) == (None, None)
    assert of_vgg.interval is not None  # shown all the same
    assert of_resnet.verdict == verdicts.HOLDS
    assert of_resnet.corrected_p == of_resnet.p  # the only claim that is counted
    marked = {(figure.cell.name, figure.name) for figure in found.figures if figure.verdict == verdicts.BESIDE_OTHERS}
    assert marked == {("vgg19_pufferfish", "seconds_per_epoch")}
    text = reproduction.markdown(found)
    assert f" | 20.200 ± 0.100 | 3 |  | {verdicts.BESIDE_OTHERS} |" in text
    assert text.count(reproduction.COMPANY_NOTE) == 1
    assert "more than 0.1 cores" in reproduction.COMPANY_NOTE


def test_company_marks_no_number_but_times_and_old_records_are_not_marked(tmp_path: Path):
    for seed in (1, 2, 3):
        for cell, seconds in (("vanilla", 3.0), ("pufferfish", 2.0), ("lth", 6.0)):
            run = tmp_path / f"records/cpu/figure5/{cell}/seed{seed}"
            write_record(run, values=(50.0 + seed,), seconds=seconds + seed / 10)
            if cell == "lth":
                plant_company(run, 2.0)
    found = read(tmp_path, "figure5")
    marked = {(figure.cell.name, figure.name) for figure in found.figures if figure.verdict == verdicts.BESIDE_OTHERS}
    assert marked == {("lth", "seconds")}
    of_quality, of_time = (claim.judgement.verdict for claim in found.claims)
    assert of_quality.startswith("not tested (vanilla underfits")  # its gates
    assert of_time == verdicts.BESIDE_OTHERS


def test_a_time_measured_beside_others_has_no_difference_from_the_papers(tmp_path: Path):
    write_cell(tmp_path, "paper/table6/vgg19_vanilla", (1, 1), seconds=30.0, device="V100")
    (figure,) = [figure for figure in read(tmp_path, "table6", "paper").figures if figure.ours and figure.quantity.is_time]
    assert figure.difference is not None
    plant_company(tmp_path / "records/paper/table6/vgg19_vanilla/seed1", 0.5)
    (figure,) = [figure for figure in read(tmp_path, "table6", "paper").figures if figure.ours and figure.quantity.is_time]
    assert (figure.verdict, figure.difference) == (verdicts.BESIDE_OTHERS, None)


def test_runs_on_different_data_are_not_compared(tmp_path: Path):
    for cell, images in (("vanilla", 50_000), ("pufferfish", 15_000)):
        for seed in (1, 2, 3):
            settings = {"name": f"{cell}{seed}", "batch_size": 32, "dataset": {"train_images": images, "seed": seed}}
            write_record(tmp_path / f"records/cpu/table4/vgg19_{cell}_fp32/seed{seed}", values=(50 + seed,), settings=settings)
            settings["dataset"]["train_images"] = 15_000
            write_record(tmp_path / f"records/cpu/table4/resnet18_{cell}_fp32/seed{seed}", values=(50 + seed,), settings=settings)
    of_vgg, of_resnet, *_ = read(tmp_path, "table4").claims
    assert of_vgg.judgement.verdict == verdicts.OTHER_DATA
    assert of_resnet.judgement.verdict.startswith("not tested (vanilla underfits")  # comparable, but its gates do not hold


def test_a_run_resumed_elsewhere_names_both_machines_and_both_commits(tmp_path: Path):
    path = write_record(tmp_path / "records/cpu/table8/low_rank/seed1") / "run.json"
    record = read_json(path)
    write_json(path, record | {"resumed": [{"epoch": 1, "commit": "fedcba9876543210", "hardware": {"device": "another"}}]})
    words = "; ".join(read(tmp_path, "table8").provenance)
    assert "commit 0123456789ab, fedcba987654" in words
    assert "on a processor, 2 threads; another" in words


def test_total_seconds_include_the_factorisation(tmp_path: Path):
    write_cell(tmp_path, "cpu/figure5/pufferfish", (1,), seconds=3.0, surgery=0.5)
    figures = {figure.name: figure.ours for figure in read(tmp_path, "figure5").figures if figure.ours}
    assert figures["seconds"].values == (2 * 3.0 + 0.5,)


def test_seeds_with_different_settings_are_refused_and_the_difference_is_named(tmp_path: Path):
    for seed, epochs in ((1, 4), (2, 8)):
        settings = {"name": f"run-seed{seed}", "seed": seed, "epochs": epochs, "reducer": {"seed": seed}}
        write_record(tmp_path / f"records/cpu/table8/low_rank/seed{seed}", settings=settings)
    with pytest.raises(InputError, match=r"seed1 and .*seed2 are not the same experiment \(epochs: 4 -> 8\)"):
        read(tmp_path, "table8")


def test_a_renamed_folder_is_not_a_seed_and_a_record_without_epochs_is_refused(tmp_path: Path):
    write_record(tmp_path / "records/cpu/table8/low_rank/seed1.old")
    assert read(tmp_path, "table8").records["low_rank"] == ()
    (write_record(tmp_path / "records/cpu/table8/low_rank/seed1") / "epochs.jsonl").unlink()
    with pytest.raises(InputError, match=r"has no epochs\.jsonl"):
        read(tmp_path, "table8")


def test_the_seconds_of_the_factorisation_are_those_of_the_surgery(tmp_path: Path):
    write_cell(tmp_path, "cpu/table19/vgg19", (1, 1), surgery=1.25)
    (figure,) = [figure for figure in read(tmp_path, "table19").figures if figure.ours]
    assert figure.ours.values == (1.25, 1.25)


def test_an_unfinished_run_is_not_a_result(tmp_path: Path):
    write_record(tmp_path / "records/cpu/table8/low_rank/seed1", finished=None)
    assert read(tmp_path, "table8").records["low_rank"] == ()


def test_provenance_comes_from_the_records(tmp_path: Path):
    write_cell(tmp_path, "cpu/table8/low_rank", (1,), device="a big one")
    write_record(tmp_path / "records/cpu/table8/low_rank/seed2", finished="2026-03-01T00:00:00+00:00")
    words = "; ".join(read(tmp_path, "table8").provenance)
    assert words == (
        "profile cpu; commit 0123456789ab; on a big one, 2 threads; a processor, 2 threads; finished 2026-01-02 to 2026-03-01"
    )


def test_wrong_input_is_one_sentence_and_code_2(tmp_path: Path, refused: Callable):
    (write_record(tmp_path / "cut/records/cpu/table8/low_rank/seed1") / "run.json").write_text("{")
    for words, sentence in [
        (("table99", "--results", str(tmp_path)), "table or figure 'table99' is not known"),
        (("--results", str(tmp_path)), "there are no records"),
        (("--profile", "gpu", "--results", str(tmp_path)), "profile=gpu is not known"),
        (("--results", str(tmp_path / "cut")), "cannot be read"),
    ]:
        refused(command.main, words, sentence)


@pytest.mark.parametrize(("seeds", "verdict"), [(4, "not tested (4 of 5 seeds)"), (5, verdicts.HOLDS)])
def test_a_claim_is_tested_when_all_seeds_that_were_fixed_in_advance_are_there(tmp_path: Path, seeds: int, verdict: str):
    for cell, accuracy in (("pufferfish", 90.0), ("vanilla", 90.1)):
        values = tuple(accuracy + seed / 100 + (seed % 2) * (cell == "vanilla") / 100 for seed in range(seeds))
        write_cell(tmp_path, f"cpu/figure_demo/{cell}", values)
    judgement = next(claim.judgement for claim in read(tmp_path, "figure_demo").claims if claim.relation.margin)
    assert judgement.verdict == verdict
    assert judgement.seeds == (seeds, seeds)
    assert judgement.interval is not None
