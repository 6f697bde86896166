"""What a certificate is about: the parts of a model that are read, and the sub-steps that its layers take."""

import pytest
import torch

import lipschitz_rnn as lr
from lipschitz_rnn.stability import certify


class Between(torch.nn.Module):
    """Two contracting layers, with something between them that no certificate reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lower, self.upper = (
            lr.LipschitzRNN(p, 8, stability="contracting", rate=0.5, step_size=0.1) for p in (2, 8)
        )
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        h = self.lower(x, first)[0]
        h = self.norm(h.flatten(0, 1)).view_as(h)
        return self.upper(h, first)[0]


def test_of_a_model_with_several_modules_nothing_is_claimed_as_a_whole() -> None:
    """Batch norm in training mode carries a difference of first states to the end of the sequence."""
    model = Between()
    certificate = certify(model)
    assert certificate.holds
    assert not certificate.cascade
    assert certificate.to_dict()["cascade"] is False
    assert "nothing is claimed about the whole" in certificate.sentence()
    x, first = torch.randn(400, 3, 2), 3 * torch.randn(1, 3, 8)
    with torch.no_grad():
        apart = (model(x, first) - model(x, -first)).norm(dim=-1).amax(1)
    assert float(apart[-1]) > 1e-3 * float(apart[0])  # e^(-0.5 * 40) would be 2e-9
    stack = certify(lr.LipschitzRNN(2, 8, 2, stability="contracting", rate=0.5, step_size=0.1))
    assert stack.cascade
    assert "trajectories of the whole" in stack.sentence()


@pytest.mark.filterwarnings("ignore:max_step is 0.5, too long:UserWarning")
def test_sub_steps_are_those_of_a_layer_that_rounds_its_times() -> None:
    """Two steps in float32, where the span is rounded to 1.000001, and three in float64: both must contract."""
    span = 1.000001000002
    layer = lr.LipschitzRNN(1, 2, gamma=(5.0, 0.5), step_size=0.5, max_step=0.5, init_scale=0.0)
    spans = torch.full((6, 1), span, dtype=torch.float64)
    first = torch.tensor([[[1.0, 0.0]]])
    with torch.no_grad():
        one, other = (layer(torch.zeros(6, 1, 1), start, timespans=spans)[0][-1] for start in (first, -first))
    assert float((one - other).norm()) > 100
    certificate = certify(layer, step_size=span)
    assert certificate.substeps == (2, 3)
    assert not certificate.holds
    assert certify(layer, step_size=1.0).substeps == (2, 2)
    assert certify(layer, step_size=1.1).substeps == (3, 3)
