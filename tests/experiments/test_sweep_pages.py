"""Pages of runs with variants: each variant is a network of its own, and runs without variants may stand beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lipschitz_rnn.documents.blocks import Heading, Picture, Table
from lipschitz_rnn.experiments.pages.sections import blocks, plain_table
from lipschitz_rnn.experiments.pages.sweeps import ScoreAgainstOption, read_curves
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.experiments.study import Row, Study

RESULTS = Path(__file__).parents[2] / "results"
SWEEP = next(record for record in read_records(RESULTS, "ablation") if record.setup.task == "ordered-mnist")
ALONE = read_records(RESULTS, "mnist")[0]


def varied(*variants: dict[str, Any]) -> Record:
    """A record of two seeds of every variant, scored 0.0, 0.1 and so on."""
    names = [variant for variant in variants for _ in range(2)]
    seeds = [
        {**SWEEP.seeds[0], "seed": index % 2, "variant": variant, "test": index / 10}
        for index, variant in enumerate(names)
    ]
    return replace(SWEEP, study="own", settings={**SWEEP.settings, "variants": list(variants)}, seeds=seeds)


def make(**fields: Any) -> Study:
    return Study(name="own", title="Own", about="A study.", rows=(Row("digits"),), **fields)


def test_every_variant_has_a_line_of_its_own() -> None:
    table = plain_table([varied({"beta": 0.5}, {"beta": 0.75})])
    assert [row[3:7] for row in table.rows] == [
        ["2", "0.00 %", "5.00 %", "10.00 %"],
        ["2", "20.00 %", "25.00 %", "30.00 %"],
    ]
    assert ["0.5" in table.rows[0][0], "0.75" in table.rows[1][0]] == [True, True]


def test_the_standard_page_does_not_take_variants_for_seeds() -> None:
    page = blocks(make(), [varied({"beta": 0.5}, {"beta": 0.75})])
    assert not any(isinstance(block, Picture) for block in page)
    tables = [block for block in page if isinstance(block, Table)]
    assert all(row[1] != "4" for table in tables for row in table.rows)


def test_a_sweep_may_stand_beside_runs_without_variants() -> None:
    section = ScoreAgainstOption()
    beside = [
        SWEEP,
        ALONE,
        varied({}, {"beta": 0.5}),
        varied({"beta": 0.5, "gamma": 0.1}),
        varied({"nonlinearity": "relu"}),
    ]
    curves = read_curves(beside)
    assert [curve.records for curve in curves] == [[SWEEP]]
    assert section(make(), [ALONE]) == []
    assert sum(isinstance(block, Heading) for block in section(make(), beside)) == 1


def test_a_quick_page_needs_no_reason() -> None:
    page = blocks(make(), [replace(ALONE, study="own", kind="quick", why="")])
    assert "experiment**. What" in page[1].markdown()


def test_the_page_says_where_the_mean_is_best() -> None:
    record = varied({"beta": 0.5}, {"beta": 0.75})
    for better, expected in ((True, "0.75 (25.00 %)"), (False, "0.5 (5.00 %)")):
        page = ScoreAgainstOption()(make(), [replace(record, higher_is_better=better)])
        assert f"beta = {expected}" in page[-1].markdown()
