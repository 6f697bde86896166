"""Lipschitz recurrent neural networks for PyTorch."""

from lipschitz_rnn._version import __version__ as __version__
