"""The page on noise in training: accuracy by strength, and accuracy with disturbed inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Picture, Table
from lipschitz_rnn.documents.numbers import show_score, spread
from lipschitz_rnn.drawing import draw_band, new_figure, to_svg
from lipschitz_rnn.experiments.paper import TITLES
from lipschitz_rnn.experiments.results import Record, count_diverged, scores_of
from lipschitz_rnn.experiments.study import Study

_SHOWN = {"white": (0.1, 0.3), "salt-and-pepper": (0.1,)}  # amounts in the table; the picture has all
_ATTACKS = {"pgd": "PGD", "deepfool-l2": "DeepFool l2", "deepfool-linf": "DeepFool l∞"}


def accuracies(study: Study, records: Sequence[Record]) -> list[Block]:
    """One table for each task: test score of every strength."""
    page: list[Block] = []
    for record in records:
        rows = []
        for variant in record.setup.variants:
            own = [record.seeds[index] for index in _own(record, variant)]
            values = (spread(scores_of(own, "validation"))[1], *spread(scores_of(own)))
            diverged = count_diverged(own)
            shown = [show_score(value, record.percent) for value in values]
            rows.append([*_strengths(variant), str(len(own)), *shown, str(diverged or "–")])
        header = ["a", "m", "seeds", "validation, mean", "test min", "mean", "max", "diverged"]
        epochs = f"{record.setup.epochs} epochs"
        facts = [f"N = {record.setup.hidden_size}", *([] if epochs in record.why else [epochs]), record.why]
        text = f"{'; '.join(filter(None, facts))}."
        page += [Heading(TITLES.get(record.setup.task, record.setup.task)), Paragraph(text), Table(header, rows)]
    return page


def disturbed_inputs(study: Study, records: Sequence[Record]) -> list[Block]:
    """Accuracy with noise and attacks on the inputs, for the runs that were measured."""
    page: list[Block] = []
    for record in (record for record in records if record.measures.get("networks")):
        method = record.measures["method"]
        text = (
            f"Mean accuracy over seeds with disturbed inputs: noise of the given amount on all test samples, and "
            f"attacks on {method['attacked']:,} of them: PGD within {method['radius_pgd']:g} in l∞, DeepFool within "
            f"{method['radius_l2']:g} in l2 or {method['radius_linf']:g} in l∞."
        )
        page += [Heading(f"Disturbed inputs: {record.setup.task}"), Paragraph(text), _table(record)]
        caption = "Test accuracy with noise on the inputs: mean and range over seeds, by the noise in training."
        page.append(Picture(f"{study.name}-{record.setup.task}", to_svg(_draw(record)), caption))
    return page


def _table(record: Record) -> Table:
    kinds = [f"{kind.replace('-', ' ')} {amount:g}" for kind, amounts in _SHOWN.items() for amount in amounts]
    rows = []
    for variant in record.setup.variants:
        own = [record.measures["networks"][index] for index in _own(record, variant)]
        columns = [[network["accuracy"] for network in own]]
        columns += [[_at(network["noise"][k], a) for network in own] for k, amounts in _SHOWN.items() for a in amounts]
        columns += [[network[attack] for network in own] for attack in _ATTACKS]
        rows.append([*_strengths(variant), *(show_score(spread(column)[1], True) for column in columns)])
    return Table(["a", "m", "clean", *kinds, *_ATTACKS.values()], rows)


def _draw(record: Record) -> Any:
    kinds = list(record.measures["networks"][0]["noise"])
    figure, axes = new_figure(len(kinds))
    for axis, kind in zip(axes, kinds, strict=True):
        for place, variant in enumerate(record.setup.variants):
            curves = [record.measures["networks"][index]["noise"][kind] for index in _own(record, variant)]
            columns = [[100 * v for v in values] for values in zip(*(c["accuracy"] for c in curves), strict=True)]
            a, m = _strengths(variant)
            draw_band(axis, curves[0]["amounts"], columns, f"C{place}", f"a = {a}, m = {m}", mark="o")
        axis.set(xlabel="amount of noise", ylabel="test accuracy (%)", title=f"{kind.replace('-', ' ')} noise")
        axis.legend(frameon=False, fontsize=8)
    return figure


def _own(record: Record, variant: Mapping[str, Any]) -> list[int]:
    return [index for index, seed in enumerate(record.seeds) if seed["variant"] == variant]


def _strengths(variant: Mapping[str, Any]) -> list[str]:
    return [f"{variant.get(name, 0.0):g}" for name in ("noise", "multiplicative_noise")]


def _at(curve: Mapping[str, Sequence[float]], amount: float) -> float:
    return curve["accuracy"][list(curve["amounts"]).index(amount)]
