"""Where the class token looks, layer by layer (CB, Fig. 10)."""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.errors import RecordError
from attngraft.recording.recording import Recording


def class_looks(recording: Recording) -> Tensor:
    """The class token's row of every recorded map, mean over heads, (B, layers, tokens): depth down, tokens across.

    The paper shows its logarithm, image by image.

        with torch.no_grad(), attngraft.record(model, "weights") as recording:
            model(images)
        pictures = class_looks(recording).log()

    Raises:
        RecordError: a layer has no class token, or sees other tokens than the one before.
    """
    rows = []
    for site in recording:
        prefix = recording.prefix(site)
        if "class" not in prefix:
            raise RecordError(f"{site!r} has no class token ({', '.join(prefix) or 'no leading tokens'})")
        weights = recording[site]["weights"]
        rows.append(weights[:, :, prefix.index("class")].mean(1))
        if rows[-1].shape != rows[0].shape:
            raise RecordError(
                f"{site!r} sees {rows[-1].shape[1]} tokens where layers before it see {rows[0].shape[1]}: choose sites that "
                "see the same ones"
            )
    if not rows:
        raise RecordError("nothing was recorded; run the model inside the with-block")
    return torch.stack(rows, 1)
