"""timm's TinyViT: attention in windows between convolutions, with norms inside the branches."""

from typing import Any, ClassVar, cast

from timm.models.tiny_vit import Attention, NormMlp, TinyVit, TinyVitBlock
from torch import Tensor

from attngraft.attention import Projected
from attngraft.hosts.adapter import check_known
from attngraft.hosts.patched import StepMlp, TwoLinearEnds
from attngraft.hosts.sites import windowed
from attngraft.hosts.timm.attention import HeadwiseQkv, PlainMerge, map_to_tokens
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, headwise_site, map_fields
from attngraft.hosts.timm.mlp import step_mlp_site
from attngraft.hosts.timm.windows import FixedWindowBlock


class GraftedAttention(HeadwiseQkv, PlainMerge, Attention):
    """`timm.models.tiny_vit.Attention`, with an input norm."""

    def project(self, x: Tensor, present: Tensor | None = None) -> Projected:
        return super().project(self.norm(x), present)


class GraftedBlock(FixedWindowBlock, TinyVitBlock):
    """`timm.models.tiny_vit.TinyVitBlock`: a local convolution between attention and MLP."""

    def forward(self, x: Tensor) -> Tensor:
        grid = x.shape[1:3]
        x = x + self.drop_path1(self.branch(x, (self.window_size, self.window_size)))
        x = map_to_tokens(self.local_conv(x.permute(0, 3, 1, 2)))
        return cast(Tensor, x + self.drop_path2(self.mlp(x))).unflatten(1, grid)


class GraftedNormMlp(TwoLinearEnds, StepMlp, NormMlp):
    """`timm.models.tiny_vit.NormMlp`: `mlp.front` is after its norm."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, rows, columns, dim = shapes.input_shape(path)
    attn = f"{path}.attn"
    check_known(block, path, arguments=("x",), children=("attn", "drop_path1", "mlp", "drop_path2", "local_conv"))
    window = windowed((rows, columns), (block.window_size, block.window_size))
    children = ("norm", "qkv", "proj")
    yield headwise_site(block.attn, attn, children=children, block=path, fills=True, dim=dim, **window)
    fields = map_fields(dim, rows, columns)
    yield step_mlp_site(block.mlp, f"{path}.mlp", GraftedNormMlp, children=("norm",), **fields)


class TimmTinyViT(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`."""

    name = "timm.tiny_vit"
    summary = "timm TinyViT of any size, including features_only"
    patched: ClassVar = {Attention: GraftedAttention, TinyVitBlock: GraftedBlock, NormMlp: GraftedNormMlp}
    models = (TinyVit,)
    blocks: ClassVar = {TinyVitBlock: _sites}
