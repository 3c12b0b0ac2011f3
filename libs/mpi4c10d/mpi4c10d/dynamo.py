"""Keep ``torch.compile`` from compiling this package.

C++ calls a process group's Python methods while a compiled DDP runs, and dynamo would compile them like the model's.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any


def hide() -> None:
    """Make dynamo skip the code of this package's modules that are imported."""
    from torch._C._dynamo import eval_frame

    if hasattr(eval_frame, "set_code_exec_strategy"):
        skipped = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    elif not hasattr(eval_frame, "skip_code"):  # both are private to torch; without them, compiled DDP fails
        return
    package = __package__ or ""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            for code in _codes(module, name):
                if hasattr(eval_frame, "set_code_exec_strategy"):
                    eval_frame.set_code_exec_strategy(code, skipped)
                else:  # torch 2.6
                    eval_frame.skip_code(code)


def _codes(scope: Any, module: str) -> Iterator[CodeType]:
    for value in list(vars(scope).values()):
        function = value.fget if isinstance(value, property) else value
        if getattr(function, "__module__", None) != module:
            continue
        if inspect.isfunction(function):
            yield from _nested(function.__code__)
        elif inspect.isclass(function):
            yield from _codes(function, module)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
