"""Watching the registered operators, below all transforms."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorCalls(TorchDispatchMode):
    """Records what really runs.

    Attributes:
        names: ``scan`` and ``scan_backward``, in the order of their calls.
        saves: for each scan, whether it kept what a backward pass needs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.saves: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "lipschitz_rnn":
            self.names.append(func._opname)
            if func._opname == "scan":
                schema = [argument.name for argument in func._schema.arguments]
                self.saves.append(args[schema.index("save")])
        return func(*args, **(kwargs or {}))
