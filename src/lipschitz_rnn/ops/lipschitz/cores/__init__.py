"""The scan for CPUs as compiled kernels: each core takes its own rows of the batch through all of time.

``support`` says what they serve, ``run`` runs them, ``plan`` lays a problem out for them. The kernels themselves are
written with ``code``, a thin layer over LLVM's instructions: ``products`` and ``sigma`` first, then ``forward`` and
``backward``. ``machine`` compiles them in memory for the processor at hand. They need llvmlite, the extra ``cpu``.
"""
