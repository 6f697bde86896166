"""The scan in parallel over time: chunks beside the batch, each after a warm-up, with a bound on what that changes.

``contraction`` says how fast two states approach each other, ``plan`` cuts the sequence, ``chunks`` runs the pieces on
any backend, ``solve`` and ``adjoint`` find the states and the gradients from what is ``known`` of each chunk, ``audit``
holds the factor against the data, and ``operators`` makes one operation of all. ``bounds`` is what the user gets to
see; ``gradient_bounds`` and ``defects`` compute its longer parts. The proofs are in ``docs/theory.md``.
"""
