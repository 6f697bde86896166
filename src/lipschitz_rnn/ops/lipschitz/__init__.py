"""The scan of ``ḣ = αA h + σ(W h + u)``.

``scan`` is the public function and ``problem`` what it hands on; ``dispatch`` chooses a backend: ``reference`` (the
definition), ``cpu`` (with ``single`` for one sequence) or ``triton``. ``operators`` registers it with PyTorch and
``differentiation`` gives its derivatives, by the formulas in ``adjoint``. ``substeps`` divides long steps; ``portable``
is for exported programs.
"""
