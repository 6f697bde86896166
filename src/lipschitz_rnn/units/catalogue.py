"""The table of units: name, paper, year, equation, constraint, source. One row per unit, read by `registry`."""

from typing import NamedTuple


class Row(NamedTuple):
    name: str
    paper: str
    year: int | None
    equation: str
    constraint: str
    source: str
    """Module and class within lipschitz_rnn.units, imported on first use."""
    ensembles: bool = True
    """Whether several networks can be trained at once by `torch.func.vmap` over stacked parameters."""
    timespans: bool = False
    """Whether each step can take the time since the previous sample: as its length, or as the time of a decay."""


# fmt: off
ROWS = (
    Row("rnn", "Elman, Cognitive Science", 1990,
        "h⁺ = tanh(W h + U x + b)", "none", "library:ElmanRNN", ensembles=False),
    Row("lstm", "Hochreiter, Schmidhuber, Neural Computation", 1997,
        "c⁺ = f ⊙ c + i ⊙ g, h⁺ = o ⊙ tanh(c⁺)", "none", "library:LSTM", ensembles=False),
    Row("gru", "Cho et al., EMNLP", 2014,
        "h⁺ = (1 − z) ⊙ n + z ⊙ h", "none", "library:GRU", ensembles=False),
    Row("rnn-orth", "Henaff et al., ICML", 2016,
        "h⁺ = tanh(W h + U x + b)", "none (W starts orthogonal)", "library:OrthogonalStartRNN", ensembles=False),
    Row("momentum-lstm", "Nguyen et al., NeurIPS", 2020,
        "v⁺ = μ v + s (U x + b), LSTM on W h + v⁺", "none", "momentum:MomentumLSTMCell"),
    Row("srlstm", "Nguyen et al., NeurIPS", 2020,
        "p⁺ = W h − s (U x + b), LSTM on p⁺ + k/(k+3) (p⁺ − p)", "none", "momentum:ScheduledRestartLSTMCell"),
    Row("urnn", "Arjovsky et al., ICML", 2016,
        "h⁺ = modReLU(W h + U x), W = D₃ R₂ F⁻¹ D₂ Π R₁ F D₁", "W unitary, 7N parameters", "unitary:URNNCell"),
    Row("full-urnn", "Wisdom et al., NeurIPS", 2016,
        "h⁺ = modReLU(W h + U x), W = W₀ exp(S)", "W unitary, all of U(N)", "unitary:FullURNNCell"),
    Row("eurnn", "Jing et al., ICML", 2017,
        "h⁺ = modReLU(W h + U x), W = F_L … F₁ D", "W unitary, L layers of rotations", "unitary:EURNNCell"),
    Row("soft-orth", "Vorontsov et al., ICML", 2017,
        "h⁺ = tanh(W h + U x + b), W = P diag(s) Qᵀ", "singular values within 1 ± m", "spectral:SoftOrthogonalCell"),
    Row("kronecker", "Jose et al., ICML", 2018,
        "h⁺ = modReLU(W h + U x), W = W₁ ⊗ … ⊗ W_F", "factors near unitary (penalty)", "unitary:KroneckerCell"),
    Row("scornn", "Helfrich et al., ICML", 2018,
        "h⁺ = modReLU(W h + U x), W = (I + K)⁻¹(I − K) D", "W orthogonal", "orthogonal:ScoRNNCell"),
    Row("exprnn", "Lezcano-Casado, Martínez-Rubio, ICML", 2019,
        "h⁺ = modReLU(W h + U x), W = exp(K)", "W orthogonal", "orthogonal:ExpRNNCell"),
    Row("dtriv", "Lezcano-Casado, NeurIPS", 2019,
        "h⁺ = modReLU(W h + U x), W = B exp(K), B rebased", "W orthogonal", "orthogonal:DtrivCell", ensembles=False),
    Row("nnrnn", "Kerg et al., NeurIPS", 2019,
        "h⁺ = modReLU(W h + U x), W = P (Λ + T) Pᵀ", "P orthogonal, eigenvalues of W on the unit circle",
        "spectral:NonNormalCell"),
    Row("antisymmetric", "Chang et al., ICLR", 2019,
        "h⁺ = h + ε tanh((K − γI) h + U x + b)", "K = −Kᵀ", "continuous:AntisymmetricCell", timespans=True),
    Row("antisymmetric-gated", "Chang et al., ICLR", 2019,
        "h⁺ = h + ε sigmoid(W h + V x + c) ⊙ tanh(W h + U x + b), W = K − γI", "K = −Kᵀ",
        "gated:GatedAntisymmetricCell", timespans=True),
    Row("nais", "Ciccone et al., NeurIPS", 2018,
        "h⁺ = h + ε tanh(A h + U x + b), A = −RᵀR − κI", "eigenvalues of A in [κ − 1, −κ]: contraction",
        "continuous:NaisCell", timespans=True),
    Row("irnn", "Kag et al., ICLR", 2020,
        "g ← g + η (tanh(W (g + h) + U x + b) − α (g + h)) K times, h⁺ = g", "none", "incremental:IncrementalCell"),
    Row("neural-ode", "Rubanova et al., NeurIPS", 2019,
        "h' = tanh(W h + U x + b)", "none", "continuous:NeuralODECell", timespans=True),
    Row("residual", "He et al., CVPR", 2016,
        "h⁺ = h + ε tanh(W h + U x + b), ε = 1 by default", "none", "continuous:ResidualCell", timespans=True),
    Row("fastrnn", "Kusupati et al., NeurIPS", 2018,
        "h⁺ = α tanh(W h + U x + b) + β h", "0 < α, β < 1", "fast:FastRNNCell"),
    Row("fastgrnn", "Kusupati et al., NeurIPS", 2018,
        "h⁺ = (ζ(1 − z) + ν) ⊙ tanh(W h + U x + b) + z ⊙ h", "W of low rank; optionally sparse and 8-bit",
        "fast:FastGRNNCell"),
    Row("fastgrnn-lsq", "Kusupati et al., NeurIPS", 2018,
        "h⁺ = (ζ(1 − z) + ν) ⊙ tanh(W h + U x + b) + z ⊙ h", "0 < ζ, ν < 1", "fast:FastGRNNLSQCell"),
    Row("spectral-rnn", "Zhang et al., ICML", 2018,
        "h⁺ = relu(W h + U x + b), W = P diag(s) Qᵀ by reflections", "singular values within 1 ± r",
        "spectral:SpectralRNNCell"),
    Row("lipschitz", "Erichson et al., ICLR", 2021,
        "h' = A h + tanh(W h + U x + b)", "A, W = (1−β)(M + Mᵀ) + β(M − Mᵀ) − γI",
        "lipschitz:LipschitzRNN", timespans=True),
    Row("lipschitz-gated", "Erichson et al., code for ICLR", 2021,
        "h' = sigmoid(W h + V x + c) ⊙ (A h + tanh(W h + U x + b))", "A, W as in lipschitz",
        "gated:GatedLipschitzCell", timespans=True),
    Row("cornn", "Rusch, Mishra, ICLR", 2021,
        "y'' = tanh(W y + V y' + U x + b) − γ y − ε y'", "none", "oscillatory:CoRNNCell", timespans=True),
    Row("lem", "Rusch et al., ICLR", 2022,
        "z⁺ = (1 − a) ⊙ z + a ⊙ tanh(W₃ y + …), y⁺ = (1 − d) ⊙ y + d ⊙ tanh(W₄ z⁺ + …)", "none",
        "oscillatory:LEMCell", timespans=True),
    Row("gru-d", "Che et al., Scientific Reports", 2018,
        "h⁺ = (1 − z) ⊙ ĥ + z ⊙ n, ĥ = exp(−max(0, W δ + b)) ⊙ h, δ: time since a value was seen", "none",
        "decay:GRUD", timespans=True),
    Row("lru", "Orvieto et al., ICML", 2023,
        "h⁺ = λ ⊙ h + γ ⊙ B x, y = gelu(C h + D x + d), complex h", "|λ| < 1, linear in h",
        "statespace:LRUCell", timespans=True),
    Row("ren", "Revay, Wang, Manchester, IEEE TAC", 2023,
        "h⁺ = A h + B σ(v) + U x + b, v = C h + D σ(v) + V x + c", "contracts by a given factor a step",
        "ren:RENCell"),
)
# fmt: on


def name_of(kind: type) -> str:
    """The unit implemented by a class or cell; the name of the class if it is not in the table."""
    ours = kind.__module__.startswith("lipschitz_rnn.units.")
    rows = (row.name for row in ROWS if ours and row.source.endswith(f":{kind.__name__}"))
    return next(rows, kind.__name__)
