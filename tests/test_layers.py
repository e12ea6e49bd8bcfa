"""Table 1: the paper's formulas against layers that are really built."""

from pufferfish_bench.report import complexity


def test_every_formula_for_parameters_holds_but_for_the_attention_that_the_paper_did_not_build():
    off = {row["layer"] for row in complexity.rows() if row["parameters_paper"] != row["parameters_counted"]}
    assert off == {"factorised attention"}


def test_orders_hold_to_a_small_factor_and_where_the_paper_has_no_constant_to_hide_exactly():
    factors = {row["layer"]: row["macs_counted"] / row["macs_paper"] for row in complexity.rows()}
    assert all(1 <= factor <= 10 for factor in factors.values())
    exact = ("vanilla FC", "factorised FC", "vanilla convolution", "factorised convolution")
    assert [factors[layer] for layer in exact] == [1.0] * 4


def test_the_sheet_shows_what_was_counted():
    text = complexity.sheet(complexity.rows()).markdown()
    assert "655,360" in text
    assert "**" not in text
