"""Building blocks of the kernels: launching, products, elementwise functions, matrix gradients, GPU limits."""
