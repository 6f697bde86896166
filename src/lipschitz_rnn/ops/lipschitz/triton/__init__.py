"""The recurrence as fused GPU kernels: hidden matrices on chip, one launch for the whole sequence.

``support`` says what they serve; ``backend`` is the entry point; ``plan`` chooses between two kernels, ``resident`` and
``cooperative``, and ``launch`` starts them; ``operands`` prepares the matrices. Products, elementwise functions and the
gradients of the matrices come from ``ops.common.triton``.
"""
