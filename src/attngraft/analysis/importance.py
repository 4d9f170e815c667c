"""What the inverse branch of BiSA attends to, as a picture of the image (BiSA, Fig. 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.recording.attention_maps import tokens_to_map
from attngraft.recording.recording import Recording


def importance(inverse_weights: Tensor) -> Tensor:
    """How well each query agrees with the key that it agrees with best, max_j L_ij: (..., Nq, Nk) to (..., Nq).

    L sums to 1 over the queries of each key, so that a query which many keys choose stands out.
    """
    return inverse_weights.amax(-1)


def importance_map(recording: Recording, site: str, name: str = "bisa.inverse_weights") -> Tensor:
    """The picture of Fig. 2: importance from 0 to 1 within each window, windows in their places, (B, H, rows, columns).

        with torch.no_grad(), attngraft.record(model, "bisa") as recording:
            model(images)
        importance_map(recording, "layers.0.blocks.1.attn")

    Prefix tokens and zeros that fill up windows stand nowhere on the map and set no scale. A window whose tokens are all
    equally important is 0.

    Args:
        name: of the recorded weights; `misa.inverse_weights` for `misa`.

    Raises:
        RecordError: nothing of this name was recorded there, or its tokens have no places on the map.
    """
    recording.attention_map_for_query(site, (0, 0), name)  # says what is wrong if these are not the tokens of the map
    places, found = recording.token_indices(site), importance(recording[site][name]).movedim(1, 2)  # (B * W, N, H)
    tokens = found.shape[1]
    windows = int(places.max()) // tokens + 1
    stands = torch.zeros(windows * tokens, dtype=torch.bool, device=found.device)
    stands[places.flatten()] = True
    stands = stands.view(windows, tokens).repeat(len(found) // windows, 1).unsqueeze(2)
    low = found.masked_fill(~stands, torch.inf).amin(1, keepdim=True)
    high = found.masked_fill(~stands, -torch.inf).amax(1, keepdim=True)
    width = high - low
    scaled = torch.where(width > 0, (found - low) / torch.where(width > 0, width, 1), 0)
    return tokens_to_map(scaled, places).movedim(3, 1)
