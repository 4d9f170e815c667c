"""What the inverse branch of BiSA attends to, as a picture of the image (BiSA, Fig. 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.analysis.on_map import put_back
from attngraft.errors import UsageError


def importance(inverse_weights: Tensor) -> Tensor:
    """How well each query agrees with the key that it agrees with best, max_j L_ij: (..., Nq, Nk) to (..., Nq).

    L sums to 1 over the queries of each key, so that a query which many keys choose stands out.
    """
    return inverse_weights.amax(-1)


def importance_map(inverse_weights: Tensor, places: Tensor) -> Tensor:
    """The picture of Fig. 2: importance from 0 to 1 within each window, windows in their places, (B, H, rows, columns).

        with torch.no_grad(), attngraft.record(model, "bisa") as recording:
            model(images)
        importance_map(recording[site]["bisa.inverse_weights"], recording.places(site))

    Prefix tokens and zeros that fill up windows stand nowhere on the map and set no scale. A window whose tokens are all
    equally important is 0.

    Args:
        inverse_weights: (B * W, H, N, N) of the W windows of each image (one, where there are no windows).
        places: (rows, columns), as `Recording.places` says.

    Raises:
        UsageError: the maps are not those of the windows.
    """
    if inverse_weights.ndim != 4 or inverse_weights.shape[-1] != inverse_weights.shape[-2]:
        raise UsageError(
            f"a tensor of {tuple(inverse_weights.shape)} is no map (B, H, N, N) whose queries are its keys"
        )
    found = importance(inverse_weights).movedim(1, 2)  # (B * W, N, H)
    tokens = found.shape[1]
    windows = int(places.max()) // tokens + 1
    stands = torch.zeros(windows * tokens, dtype=torch.bool, device=found.device)
    stands[places.flatten().to(found.device)] = True
    stands = stands.view(windows, tokens).repeat(len(found) // windows, 1).unsqueeze(2)
    low = found.masked_fill(~stands, torch.inf).amin(1, keepdim=True)
    high = found.masked_fill(~stands, -torch.inf).amax(1, keepdim=True)
    width = high - low
    scaled = torch.where(width > 0, (found - low) / torch.where(width > 0, width, 1), 0)
    return put_back(scaled, places).movedim(3, 1)
