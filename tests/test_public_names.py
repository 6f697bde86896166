"""What other programs may rely on: names, signatures, and what an import costs."""

import inspect
import subprocess
import sys
from importlib.resources import files

import pytest

import lipschitz_rnn as lr

NAMES = [
    "LipschitzRNN",
    "LipschitzRNNCell",
    "SymmetricSkew",
    "__version__",
    "data",
    "lipschitz_scan",
    "load_run",
    "robustness",
    "stability",
    "tasks",
    "training",
    "units",
]

# The calls of the contract; names and order of arguments, and their defaults.
SIGNATURES = {
    "LipschitzRNN": "input_size hidden_size num_layers=1 bias=True batch_first=False dropout=0.0 bidirectional=False * "
    "beta=0.75 gamma=0.001 step_size=0.03 alpha=1.0 integrator='euler' nonlinearity='tanh' init_scale=0.1 "
    "stability=None rate=None metric_spread=None bounded_gain=False backend='auto' recompute_every=None max_step=None "
    "noise=0.0 multiplicative_noise=0.0 parallel=None tolerance=1e-06 proj_size=0 device=None dtype=None",
    "LipschitzRNNCell": "input_size hidden_size bias=True * beta=0.75 gamma=0.001 step_size=0.03 max_step=None "
    "alpha=1.0 integrator='euler' nonlinearity='tanh' init_scale=0.1 stability=None rate=None metric_spread=None "
    "bounded_gain=False "
    "noise=0.0 multiplicative_noise=0.0 device=None dtype=None",
    "LipschitzRNN.forward": "self input hx=None * lengths=None timespans=None need_output=True generator=None",
    "LipschitzRNNCell.forward": "self input hx=None timespans=None matrices=None * generator=None",
    "LipschitzRNN.hidden_matrices": "self layer=0 direction=0",
    "SymmetricSkew": "beta gamma",
    "SymmetricSkew.forward": "self M",
    "SymmetricSkew.right_inverse": "self S",
    "SymmetricSkew.spectrum_bounds": "self M",
    "lipschitz_scan": "u A W hx=None step_size=0.03 alpha=1.0 integrator='euler' nonlinearity='tanh' lengths=None "
    "backend='auto' * input_weight=None bias=None need_output=True recompute_every=None exact_products=False "
    "max_step=None noise=None parallel=None tolerance=1e-06 contraction=None bound=None",
    "robustness.white_noise": "inputs amount generator * bounds=None clip=False",
    "robustness.salt_and_pepper": "inputs amount generator * bounds=(0.0, 1.0) lengths=None batch_first=False",
}


def test_names() -> None:
    assert sorted(lr.__all__) == NAMES
    assert sorted(dir(lr)) == NAMES
    for name in NAMES:
        assert getattr(lr, name) is not None


def described(function: object) -> str:
    words, keyword_only = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            words.append("*")
            keyword_only = True
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(parameter.name + default)
    return " ".join(words)


@pytest.mark.parametrize("path", SIGNATURES)
def test_signatures(path: str) -> None:
    target = lr
    for name in path.split("."):
        target = getattr(target, name)
    assert described(target) == SIGNATURES[path]


@pytest.mark.parametrize("name", ["hessian", "pgd", "deepfool"])
def test_what_measures_a_model_takes_model_inputs_and_targets(name: str) -> None:
    parameters = list(inspect.signature(getattr(lr.robustness, name)).parameters.values())
    assert [parameter.name for parameter in parameters[:3]] == ["model", "inputs", "targets"]
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters[3:])


def test_types_are_shipped() -> None:
    assert files("lipschitz_rnn").joinpath("py.typed").is_file()


def test_import_is_light() -> None:
    """The layer alone, even when it runs, loads none of what only experiments need."""
    heavy = ("matplotlib", "sklearn", "scipy", "cvxpy", "triton", "tensorboard", "soundfile", "onnx", "foolbox")
    program = (
        "import sys, torch; before = set(sys.modules); import lipschitz_rnn as lr; "
        "lr.LipschitzRNN(3, 5)(torch.zeros(4, 2, 3))[0].sum().backward(); "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        f"print(*sorted(new & set({heavy})))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
