"""The peak memory of a training step, measured as what its tensors occupy.

On an accelerator the allocator is asked. On CPU there is no allocator to ask, and a process's resident memory says more
about libraries and malloc than about the model; so every tensor storage that a step makes is followed from its birth to
its death, and the largest sum of those alive counts. What a kernel uses inside itself is not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):
    """While active, sums the bytes of storages made inside; `peak` is the largest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and _key(leaf) not in given and _key(leaf) not in self._known:
                self._follow(leaf.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()

        def gone(_: object) -> None:
            self._known.pop(key, None)
            self.live -= size

        self._known[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
