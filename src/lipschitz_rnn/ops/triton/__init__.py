"""The recurrence as fused GPU kernels: hidden matrices on chip, one launch for the whole sequence.

``support`` says what they serve, ``backend`` launches them, ``elementwise`` and ``products`` are what a step is made of,
``resident`` and ``cooperative`` are the two ways to walk through time.
"""
