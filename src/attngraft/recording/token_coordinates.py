"""Token coordinates: which token of each site is at which position of the image's map."""

from collections.abc import Mapping

import torch
from torch import Tensor

from attngraft.attention import AttentionGeometry, Geometry
from attngraft.errors import RecordError
from attngraft.recording.attention_maps import interleaved_indices, scaled_grid
from attngraft.recording.reductions import TokenLayout


class TokenCoordinates:
    """Map positions of the tokens of the chosen sites.

    Positions are computed from the host's geometry and the size of the current images.

    Args:
        geometries: geometry by site, valid for images of the host's default size.
        default_size: the host's default size, (rows, columns) in pixels; None: the host takes no images.
    """

    def __init__(self, geometries: Mapping[str, Geometry], default_size: tuple[int, int] | None = None) -> None:
        self._geometries, self._default_size = geometries, default_size
        self.image_size = default_size  #: size of the images in the current forward pass; None: no images
        self._reported: dict[str, Tensor] = {}  # token indices by site, from hosts that record how they cut windows
        #: sites of `_reported` whose tensors are (B, blocks, tokens, C) instead of maps
        self.in_blocks: set[str] = set()

    def report(self, site: str, token_indices: Tensor, *, in_blocks: bool = False) -> None:
        """Store the token indices that the host recorded for a site in the current forward pass."""
        self._reported[site] = token_indices
        if in_blocks:
            self.in_blocks.add(site)

    def geometry(self, site: str) -> Geometry:
        """Return the geometry of a chosen site.

        Raises:
            RecordError: the site was not chosen.
        """
        if site not in self._geometries:
            raise RecordError(f"{site!r} is not one of the chosen sites: {', '.join(self._geometries)}")
        return self._geometries[site]

    def token_indices(self, site: str, tokens: int | None = None) -> Tensor:
        """Return the index of the token at each map position, (rows, columns).

        Indices are counted over the windows of one image.

        Args:
            site: the site's path.
            tokens: length of a sequence, prefix tokens included; None: unknown.

        Raises:
            RecordError: the host does not report token positions for this site, or the number of tokens does not match.
        """
        if site in self._reported:
            return self._reported[site]
        geometry = self.geometry(site)
        if (why := _unknown_because(geometry)) is not None:
            raise RecordError(f"the map positions of the tokens of {site!r} are unknown: {why}")
        if (grid := self._grid(geometry, tokens)) is None:
            prefix = f"{geometry.prefix_tokens} prefix tokens and " if geometry.prefix else ""
            raise RecordError(self._wrong_number(site, tokens, prefix, geometry.grid or (0, 0)))
        if geometry.apart is not None:
            return interleaved_indices(grid, geometry.apart)
        return geometry.prefix_tokens + torch.arange(grid[0] * grid[1]).view(grid)

    def map_size(self, site: str) -> tuple[int, int] | None:
        """Return (rows, columns) of the map at the site's hook points.

        Returns None if the map is unknown, or if queries are pooled.
        """
        geometry = self.geometry(site)
        if isinstance(geometry, AttentionGeometry) and geometry.query_tokens is not None:
            return None
        if (reported := self._reported.get(site)) is not None:
            return reported.shape[0], reported.shape[1]
        grid = self._grid(geometry, None)
        if grid is None or geometry.apart is None:
            return grid
        return grid[0] * geometry.apart[0], grid[1] * geometry.apart[1]

    def key_indices(self, site: str, tokens: int | None = None) -> Tensor:
        """Return the index of the cross-attention key at each map position, (rows, columns).

        Raises:
            RecordError: the site is not cross-attention, its keys have no grid, or the number of keys does not match.
        """
        geometry = self.geometry(site)
        if not isinstance(geometry, AttentionGeometry) or not geometry.cross:
            raise RecordError(
                f"{site!r} is self-attention, but `keys_on_map` requires cross-attention; use `attention_map_for_query` or "
                "`full_attention_map`"
            )
        if geometry.keys_grid is None:
            raise RecordError(
                f"the map positions of the keys of {site!r} are unknown: its host reports no grid for them"
            )
        if (grid := self._scaled(geometry.keys_grid, tokens)) is None:
            raise RecordError(self._wrong_number(site, tokens, "", geometry.keys_grid))
        return torch.arange(grid[0] * grid[1]).view(grid)

    def layout(self, site: str, tokens: int) -> TokenLayout:
        """Return the layout of a map with `tokens` keys, for reductions."""
        geometry = self.geometry(site)
        window = geometry.window if isinstance(geometry, AttentionGeometry) else None
        windowed = window not in (None, geometry.grid)  # the geometry does not describe how windows are interleaved
        grid, indices = None if windowed else self._grid(geometry, tokens), self._reported.get(site)
        if indices is None and grid is not None and geometry.apart is not None:
            indices = interleaved_indices(grid, geometry.apart)
        return TokenLayout(geometry.prefix_tokens, grid, indices)

    def _grid(self, geometry: Geometry, tokens: int | None) -> tuple[int, int] | None:
        spatial = None if tokens is None else tokens - geometry.prefix_tokens
        return None if geometry.grid is None else self._scaled(geometry.grid, spatial)

    def _scaled(self, grid: tuple[int, int], tokens: int | None) -> tuple[int, int] | None:
        """Return `grid` scaled to the current image size; None if it does not have `tokens` positions."""
        if self._default_size is None:
            return grid if tokens in (None, grid[0] * grid[1]) else None
        if self.image_size is None:
            return None
        return scaled_grid(self.image_size, grid=grid, default_size=self._default_size, tokens=tokens)

    def _wrong_number(self, site: str, tokens: int | None, prefix: str, grid: tuple[int, int]) -> str:
        expected = f"{prefix}a map of {grid[0]} x {grid[1]}"
        if self._default_size is None:
            return f"{site!r} got {tokens} tokens, but its host's default is {expected}"
        if self.image_size is None:
            return f"the map positions of the tokens of {site!r} are unknown: the model got no images"
        image, default = (f"{size[0]} x {size[1]}" for size in (self.image_size, self._default_size))
        got = "not a whole number of patches" if tokens is None else f"{tokens} tokens"
        return (
            f"{site!r} got images of {image} ({got}), but its host's default size of {default} has {expected}; use "
            "images of that size to map tokens to the image"
        )


def _unknown_because(geometry: Geometry) -> str | None:
    """Return why token positions cannot be computed from the geometry, or None if they can."""
    if geometry.grid is None:
        return "they have no grid"
    if isinstance(geometry, AttentionGeometry) and geometry.window is not None:
        return "hosts of this family do not report how they cut windows"
    if geometry.sequences > 1 and geometry.apart is None:
        return f"its host cuts an image into {geometry.sequences} sequences and does not report their layout"
    return None
