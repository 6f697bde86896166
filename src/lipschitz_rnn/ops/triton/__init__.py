"""The recurrence as fused GPU kernels: hidden matrices on chip, one launch for the whole sequence.

``support`` says what they serve; ``backend`` is the way in; ``plan`` chooses between the two ways to walk through time,
``resident`` and ``cooperative``, and ``launch`` starts them; ``gradients`` sums up afterwards; ``operands``,
``products`` and ``elementwise`` are what a step is made of.
"""
