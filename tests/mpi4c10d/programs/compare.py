"""Print as JSON how the results of each training program differ between two files: equal, close, or the difference."""

from __future__ import annotations

import json
import sys

import torch


def difference(one: object, other: object) -> str:
    if isinstance(one, str) or isinstance(other, str):
        return f"{one}\n{other}"
    if len(one) != len(other) or not one:
        return f"{len(one)} and {len(other)} tensors"
    if all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True)):
        return "equal"
    try:
        for mine, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    except AssertionError as error:
        return str(error)
    return "close"


ours, theirs = (torch.load(file) for file in sys.argv[1:])
print(json.dumps({name: difference(ours[name], theirs[name]) for name in ours}))
