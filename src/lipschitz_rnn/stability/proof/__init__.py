"""What a certificate relies on: this code must be right, and it imports nothing from ``stability.search``.

``rounding`` bounds every rounding error, ``rates`` and ``norms`` turn such bounds into proved rates and norms;
``systems`` and ``inequality`` (or ``corners``) state what has to hold, ``perturbation`` and ``precision`` what kernels
may hold instead of the exact matrices. ``inputs``, ``modules`` and ``files`` read what is to be certified, ``proving``
checks a candidate, and ``certificate``, ``gain`` and ``theorem`` say what follows.
"""
