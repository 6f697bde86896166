"""The elementwise part of the modReLU scan as GPU kernels."""
