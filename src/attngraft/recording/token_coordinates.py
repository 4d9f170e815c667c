"""Where the tokens of each site stand on the map of the image: what its host says, and the size of the images that came."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attngraft.attention import AttentionGeometry, Geometry
from attngraft.errors import RecordError
from attngraft.recording.attention_maps import grid_at, interleaved
from attngraft.recording.reductions import Around


class TokenCoordinates:
    """What is known of the tokens of the chosen sites.

    Args:
        geometries: site to what its host says of it, which holds for images of its own size.
        made_for: that size, (rows, columns) of pixels; None: the host takes no images.
    """

    def __init__(self, geometries: Mapping[str, Geometry], made_for: tuple[int, int] | None = None) -> None:
        self._geometries, self._made_for = geometries, made_for
        self._seen = made_for
        self._offered: dict[str, Tensor] = {}  # by hosts that say how they cut windows
        self._in_blocks: set[str] = set()  # those of them whose hook points have blocks, which nothing puts back

    def saw(self, size: tuple[int, int] | None) -> None:
        """Images of this size, (rows, columns) of pixels, are on their way through the model; None: something else is."""
        self._seen = size

    def offered(self, site: str, places: Tensor, *, in_blocks: bool = False) -> None:
        """The host said itself where the tokens of this site stand, in this call."""
        self._offered[site] = places
        if in_blocks:
            self._in_blocks.add(site)

    def in_blocks(self, site: str) -> bool:
        """Whether what leaves a hook point of this site is (B, blocks, tokens, C), and no map."""
        return site in self._in_blocks

    def geometry(self, site: str) -> Geometry:
        """
        Raises:
            RecordError: the site was not among the chosen ones.
        """
        if site not in self._geometries:
            raise RecordError(f"{site!r} is none of the chosen sites: {', '.join(self._geometries)}")
        return self._geometries[site]

    def places(self, site: str, tokens: int | None = None) -> Tensor:
        """(rows, columns): which token stands at each place of the map, counted over the windows of one image.

        Args:
            site: whose.
            tokens: how many there are in a sequence, prefix tokens included; None: not known.

        Raises:
            RecordError: the host does not say where the tokens of this site stand, or they are not as many as it says.
        """
        if site in self._offered:
            return self._offered[site]
        geometry = self.geometry(site)
        if (why := _unsaid(geometry)) is not None:
            raise RecordError(f"where the tokens of {site!r} stand on the map is not known: {why}")
        if (grid := self._grid(geometry, tokens)) is None:
            leading = f"{geometry.prefix_tokens} leading tokens and " if geometry.prefix else ""
            raise RecordError(self._not_so_many(site, tokens, leading, geometry.grid or (0, 0)))
        if geometry.apart is not None:
            return interleaved(grid, geometry.apart)
        return geometry.prefix_tokens + torch.arange(grid[0] * grid[1]).view(grid)

    def size(self, site: str) -> tuple[int, int] | None:
        """(rows, columns) of the whole map that leaves a hook point of this site, whatever windows it is cut into; None: it is
        not known, or queries are pooled to a smaller one."""
        geometry = self.geometry(site)
        if isinstance(geometry, AttentionGeometry) and geometry.query_tokens is not None:
            return None
        if (places := self._offered.get(site)) is not None:
            return places.shape[0], places.shape[1]
        grid = self._grid(geometry, None)
        if grid is None or geometry.apart is None:
            return grid
        return grid[0] * geometry.apart[0], grid[1] * geometry.apart[1]

    def key_places(self, site: str, tokens: int | None = None) -> Tensor:
        """(rows, columns): which key of a cross-attention stands at each place of the map.

        Raises:
            RecordError: the site is no cross-attention, its host does not say where its keys stand, or they are not as many
                as it says.
        """
        geometry = self.geometry(site)
        if not isinstance(geometry, AttentionGeometry) or not geometry.cross:
            raise RecordError(f"the keys of {site!r} are its own tokens: `places`, `looks` and `whole` are for these")
        if geometry.keys_grid is None:
            raise RecordError(f"where the keys of {site!r} stand on the map is not known: they stand on no grid")
        if (grid := self._at(geometry.keys_grid, tokens)) is None:
            raise RecordError(self._not_so_many(site, tokens, "", geometry.keys_grid))
        return torch.arange(grid[0] * grid[1]).view(grid)

    def around(self, site: str, tokens: int) -> Around:
        """What a reduction may know of maps of so many keys."""
        geometry = self.geometry(site)
        window = geometry.window if isinstance(geometry, AttentionGeometry) else None
        spread = window not in (None, geometry.grid)  # windows may lie apart: their host must say how
        grid, places = None if spread else self._grid(geometry, tokens), self._offered.get(site)
        if places is None and grid is not None and geometry.apart is not None:
            places = interleaved(grid, geometry.apart)
        return Around(geometry.prefix_tokens, grid, places)

    def _grid(self, geometry: Geometry, tokens: int | None) -> tuple[int, int] | None:
        spatial = None if tokens is None else tokens - geometry.prefix_tokens
        return None if geometry.grid is None else self._at(geometry.grid, spatial)

    def _at(self, grid: tuple[int, int], tokens: int | None) -> tuple[int, int] | None:
        """What `grid` is of images as large as those that came; None: it has not so many places."""
        if self._made_for is None:
            return grid if tokens in (None, grid[0] * grid[1]) else None
        if self._seen is None:
            return None
        return grid_at(self._seen, grid=grid, made_for=self._made_for, tokens=tokens)

    def _not_so_many(self, site: str, tokens: int | None, leading: str, grid: tuple[int, int]) -> str:
        own = f"{leading}a map of {grid[0]} x {grid[1]}"
        if self._made_for is None:
            return f"{site!r} saw {tokens} tokens, and its host's own size is {own}"
        if self._seen is None:
            return f"where the tokens of {site!r} stand is not known: the model got no images, whose size would say it"
        seen, made_for = (f"{size[0]} x {size[1]}" for size in (self._seen, self._made_for))
        saw = "which are no whole number of patches" if tokens is None else f"and saw {tokens} tokens"
        return (
            f"{site!r} got images of {seen}, {saw}, where its host's own size of {made_for} is {own}: give it images of "
            "that size to see them on the map"
        )


def _unsaid(geometry: Geometry) -> str | None:
    """Why nobody knows from this alone where tokens stand; None: it is known."""
    if geometry.grid is None:
        return "they stand on no grid"
    if isinstance(geometry, AttentionGeometry) and geometry.window is not None:
        return "hosts of its family do not say how they cut windows"
    if geometry.sequences > 1 and geometry.apart is None:
        return f"its host makes {geometry.sequences} sequences of one image, and does not say how they lie in it"
    return None
