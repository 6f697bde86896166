"""The keywords that ``lipschitz_scan`` had before, ``h0`` and ``all_states``."""

from __future__ import annotations

import pytest
import torch
from problems import random_problem
from torch import Tensor

from lipschitz_rnn import lipschitz_scan


def old(arguments: dict[str, object]) -> dict[str, object]:
    return {"h0" if name == "hx" else name: value for name, value in arguments.items()}


def test_old_keywords_warn_at_the_line_of_the_call(generator: torch.Generator) -> None:
    arguments = random_problem(generator).arguments
    expected = lipschitz_scan(**arguments)
    with pytest.warns(DeprecationWarning, match="h0=|all_states=") as caught:
        states, last = lipschitz_scan(**old(arguments), all_states=False)
    assert states is None
    assert torch.equal(last, expected[1])
    assert sorted(str(warning.message).split()[1] for warning in caught) == ["all_states=", "h0="]
    assert {warning.filename for warning in caught} == {__file__}


def test_an_old_and_a_new_keyword_together_are_refused(generator: torch.Generator) -> None:
    problem = random_problem(generator)
    with pytest.raises(TypeError, match=r"h0=.*hx="):
        lipschitz_scan(**problem.arguments, h0=problem.hx)


def test_old_keywords_compiled_exported_and_mapped(generator: torch.Generator) -> None:
    problem = random_problem(generator)
    expected = lipschitz_scan(**problem.arguments)[1]

    class Scan(torch.nn.Module):
        def forward(self, u: Tensor, hx: Tensor) -> Tensor:
            return lipschitz_scan(**old(problem.arguments | {"u": u, "hx": hx}), all_states=False)[1]

    scan, given = Scan(), (problem.u, problem.hx)
    torch.testing.assert_close(torch.compile(scan, backend="aot_eager", fullgraph=True)(*given), expected)
    torch.testing.assert_close(torch.export.export(scan, given).module()(*given), expected)
    with pytest.warns(DeprecationWarning, match="h0=|all_states="):
        found = torch.func.vmap(scan)(problem.u[None], problem.hx[None])[0]
    torch.testing.assert_close(found, expected)
