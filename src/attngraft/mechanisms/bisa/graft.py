"""The grafts of bi-directional attention: `bisa`, and `misa`, its inverse direction alone."""

from dataclasses import dataclass

from attngraft.attention import Geometry, Graft, GraftType, HookPoint, LinearLayer, Unused
from attngraft.mechanisms.bisa.branch import TokenProjection
from attngraft.mechanisms.bisa.mix import BidirectionalMix, MixVariant, Transform
from attngraft.mechanisms.common import attention_geometry
from attngraft.mechanisms.registry import register_graft

WHOLE_SET = "the softmax over queries depends on all tokens: image size, padding and dropped tokens change every output"


class BidirectionalGraft(BidirectionalMix, Graft):
    """`BidirectionalMix` as a graft."""

    @property
    def adds_after(self) -> bool:  # type: ignore[override]
        """Whether the branch has a separate output projection."""
        return self.own is not None

    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> Graft | str | None:
        """Fold the branch's batch norms into its linear layers."""
        maps = [module for module in self.modules() if isinstance(module, TokenProjection) and module.norm is not None]
        if not maps:
            return super().fold(before=before, after=after)
        for each in maps:
            each.absorb_norm()
        self.folded = "its batch norms are folded into its linear maps"
        return self


@dataclass(frozen=True)
class BisaOptions(MixVariant):
    """Options of `bisa`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight == 1:
            raise ValueError("weight=1 is the host's own attention without the inverse branch; choose a smaller weight")

    def variant(self) -> MixVariant:
        return self


@dataclass(frozen=True)
class MisaOptions:
    """Options of `misa`."""

    norm: bool = False  #: normalize the output over the tokens, channel by channel
    #: transform of a query by a value: hypernetwork, or MLP of equal size (the ablation)
    transform: Transform = "hyper"

    def variant(self) -> MixVariant:
        """The equivalent variant of BiSA, which has lambda = 0."""
        return MixVariant(weight=0.0, norm=self.norm, transform=self.transform)


BranchOptions = BisaOptions | MisaOptions


class BidirectionalType(GraftType[BranchOptions]):
    """Graft type of `bisa` and `misa`, which differ in their options."""

    def __init__(self, name: str, summary: str, source: str, options: type[BranchOptions]) -> None:
        self.name, self.summary, self.Options = name, summary, options
        self.source = f"Bi-Directional Self-Attention for Vision Transformers, {source}"

    def hook_points(self, options: BranchOptions) -> tuple[HookPoint, ...]:
        return ("mix",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: BranchOptions) -> Graft:
        site = attention_geometry(geometry)
        return BidirectionalGraft(
            site.dim,
            site.heads,
            key_dim=site.key_width,
            value_dim=site.value_width,
            out_dim=site.width("tokens"),
            variant=options.variant(),
            projection=site.projection,
            init=site.init,
        )

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: BranchOptions) -> str | None:
        site, order = attention_geometry(geometry), options.variant().order
        if site.causal:
            return (
                "its tokens must not see later ones, but the softmax over queries does; use horizontal or vertical, which "
                "do not mix tokens"
            )
        if site.padded:
            return (
                "its batches contain padding, and padded queries would take a share of every key; use horizontal or "
                "vertical, which do not mix tokens"
            )
        if site.cross:
            return "its keys and queries come from different tokens; choose self-attention sites"
        if site.query_tokens is not None:
            return (
                "its query side has fewer tokens than its key side (queries are subsampled), and the paper never replaces "
                "such attention; choose other sites"
            )
        if site.key_tokens is not None:
            return (
                "its key side has fewer tokens than its query side (keys are subsampled), and the paper's inverse branch "
                "has one query for each key; choose other sites"
            )
        if order != "parallel" and site.heads * site.value_width != site.dim:
            return (
                f"order={order} applies the projections to merged heads, but {site.heads} heads of width "
                f"{site.value_width} do not add up to the width {site.dim}; use order=parallel"
            )
        return None

    def starts_as_identity(self, options: BranchOptions) -> bool:
        return options.variant().identity

    def unused(self, geometry: Geometry, hook_point: HookPoint, options: BranchOptions) -> Unused:
        """Return the rows of the host's value projection, which are unused without self-attention."""
        site = attention_geometry(geometry)
        return Unused() if options.variant().attends else Unused(rows=site.head_rows("v", 0, site.heads))

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: BranchOptions) -> tuple[str, ...]:
        site, variant, notes = attention_geometry(geometry), options.variant(), [WHOLE_SET]
        grid, window = site.grid, site.window
        if (
            grid is not None
            and window is not None
            and any(side % each for side, each in zip(grid, window, strict=True))
        ):
            notes.append(
                f"a map of {grid[0]} x {grid[1]} does not divide into windows of {window[0]} x {window[1]}, and the host "
                "pads it with zeros: the inverse branch ignores them, but the host's own attention includes them"
            )
        norm = site.projection.norm is not None
        if variant.identity:
            start = "norm after the branch's own projection" if norm and variant.separate else "hypernetwork"
            notes.append(f"identity=true is not in the paper: its equation is divided by lambda, with a zero {start}")
        if norm and variant.order != "parallel":
            notes.append(
                f"order={variant.order} passes two kinds of tokens through each batch norm, whose running statistics mix "
                "both: evaluation normalizes differently from training"
            )
        if variant.separate:
            notes.append(
                "separate=true is one interpretation of the two additional maps per layer in the paper's counts for LeViT"
            )
        if isinstance(options, MisaOptions):
            notes.append(
                "the host's value projection remains in the model, unused; the paper counts its parameters too"
            )
        return tuple(notes)

    def inert_parameters(self, geometry: Geometry, hook_point: HookPoint, options: BranchOptions) -> frozenset[str]:
        site, variant = attention_geometry(geometry), options.variant()
        if site.tokens == 1:
            names = frozenset(name for name, _ in self.build(geometry, hook_point, options).named_parameters())
            if variant.norm:  # the norm subtracts the mean, which is the single token
                return names
            return frozenset(name for name in names if name.startswith(("own.query.", "own.key.")))  # softmaxes are 1
        if not variant.separate:
            return frozenset()
        return frozenset({"own.query.norm.bias"} if site.projection.norm else {"own.query.linear.bias"})


BISA = register_graft(
    BidirectionalType(
        "bisa",
        "bi-directional attention: self-attention and its inverse, each query transformed by the values it receives",
        "Eqs. 1 to 3",
        BisaOptions,
    )
)
MISA = register_graft(
    BidirectionalType(
        "misa", "the inverse branch of bi-directional attention alone, instead of self-attention", "Eq. 2", MisaOptions
    )
)
