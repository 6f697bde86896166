"""The modReLU scan as GPU kernels: the elementwise part of a step, and all steps of a complex state."""
