"""The matrix of a comparison as a LaTeX table with booktabs' rules."""

from __future__ import annotations

from lipschitz_rnn.experiments.comparison.collecting import Cell, Comparison

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "β": r"$\beta$", "γ": r"$\gamma$", "α": r"$\alpha$", "ε": r"$\varepsilon$", "–": "--", "±": r"$\pm$",
}  # fmt: skip


def escape(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def to_latex(comparison: Comparison) -> str:
    r"""A complete table; the document needs \usepackage{booktabs}."""
    header = [" & ".join(["", *map(escape, comparison.columns), "parameters"])]
    header.append(" & ".join(["", *(_unit(comparison, column) for column in comparison.columns), ""]))
    body = []
    for row in comparison.rows:
        cells = [comparison.cells.get((row, column)) for column in comparison.columns]
        shown = [_score(cell, cell is not None and comparison.is_best(cell)) for cell in cells]
        body.append(" & ".join([escape(row), *shown, _parameters([cell for cell in cells if cell is not None])]))
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_caption(comparison)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(comparison.columns) + 1)}}}",
        r"\toprule",
        *(f"{line} \\\\" for line in header),
        r"\midrule",
        *(f"{line} \\\\" for line in body),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _caption(comparison: Comparison) -> str:
    seeds = sorted({len(cell.scores) for cell in comparison.cells.values()})
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    text = f"Scores on the {comparison.split} split at the epoch selected on validation data: mean and standard"
    return f"{text} deviation over seeds ({count} a cell)."


def _unit(comparison: Comparison, column: str) -> str:
    cell = next(cell for (_, name), cell in comparison.cells.items() if name == column)
    return escape(f"{cell.metric} (%)" if cell.percent else cell.metric)


def _score(cell: Cell | None, best: bool) -> str:
    if cell is None or cell.summary is None:
        return "diverged" if cell is not None and cell.diverged else "--"
    scale, digits = (100.0, ".2f") if cell.percent else (1.0, ".4g")
    text = format(scale * cell.summary.mean, digits)
    if best:
        text = rf"\mathbf{{{text}}}"
    if cell.summary.deviation is not None:
        text += rf" \pm {format(scale * cell.summary.deviation, '.2f' if cell.percent else '.2g')}"
    return f"${text}$" + (f" ({cell.missing} of {len(cell.scores)} diverged)" if cell.missing else "")


def _parameters(cells: list[Cell]) -> str:
    counts = sorted({cell.parameters for cell in cells if cell.parameters})
    if not counts:
        return "--"
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
