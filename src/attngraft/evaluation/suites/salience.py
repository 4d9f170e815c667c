"""At which patches of an image a model looks most, by its last attention that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attngraft.errors import AttngraftError, HostError, RecordError, UsageError
from attngraft.hosts import find_host
from attngraft.recording.attention_maps import full_attention_map
from attngraft.recording.record import record
from attngraft.recording.recording import Recording


class NotPossible(AttngraftError):
    """A condition that this model cannot be put under; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Salience:
    """Scores of patches, and how they were found."""

    scores: Tensor  #: (B, rows * columns)
    patch: int  #: side in pixels
    site: str
    by: str  #: in words


def salience(model: nn.Module, run: Callable[[], object], *, size: tuple[int, int]) -> Salience:
    """How much each patch of the images is looked at, mean over heads.

    By the class token's row of the last attention map (Naseer et al. 2021); where there is no class token, by the mean over
    all tokens of how much they look at the patch.

    Args:
        model: read by some host adapter.
        run: calls it on the images.
        size: of the images, (H, W).

    Raises:
        NotPossible: no attention of the model says at which patches it looks.
    """
    try:
        host = find_host(model)
    except HostError as error:
        raise NotPossible(f"no attention of this model can be read: {str(error).splitlines()[0]}") from None
    why = "its host names no attention over the patches"
    for site in reversed([site for site in host.sites if "weights" in site.targets]):
        try:
            with torch.no_grad(), record(host.core, "weights", sites=site.path) as recording:
                run()
            return _of(recording, site.path, size)
        except (RecordError, NotPossible, UsageError) as error:
            why = str(error).splitlines()[0]
    raise NotPossible(f"no attention of this model says at which patches it looks: {why}")


def _of(recording: Recording, site: str, size: tuple[int, int]) -> Salience:
    weights, prefix, places = recording[site]["weights"].float(), recording.prefix(site), recording.token_indices(site)
    rows, columns = (int(number) for number in places.shape)
    if rows * columns < 2:
        raise NotPossible(f"{site} sees {rows} x {columns} places")
    if size[0] % rows or size[1] % columns or size[0] // rows != size[1] // columns:
        raise NotPossible(
            f"{site}'s map of {rows} x {columns} does not cut images of {size[0]} x {size[1]} into squares"
        )
    if "class" in prefix:
        row = weights[:, :, prefix.index("class")].mean(1)
        if row.shape[1] != len(prefix) + places.numel():
            raise NotPossible(f"{site} sees {row.shape[1]} tokens, which are not those of its map")
        scores, by = row[:, places.flatten().to(row.device)], "the class token's row"
    else:
        scores, by = full_attention_map(weights, places.to(weights.device)).mean((1, 2)), "the mean over all tokens"
    return Salience(scores=scores, patch=size[0] // rows, site=site, by=f"{by} at {site}")
