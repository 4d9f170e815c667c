"""timm's TinyViT: attention in windows between convolutions, with norms inside the branches."""

from typing import Any, ClassVar, cast

from timm.models.tiny_vit import Attention, NormMlp, TinyVit, TinyVitBlock
from torch import Tensor

from attngraft.attention import MlpGeometry, MlpSite, Projected
from attngraft.hosts.adapter import check_known
from attngraft.hosts.patched import TwoLinearEnds
from attngraft.hosts.sites import mlp_site, window_site, windowed
from attngraft.hosts.timm.attention import HeadwiseQkv, PlainMerge, map_to_tokens
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, headwise_geometry, map_fields
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


class GraftedNormMlp(TwoLinearEnds, MlpSite, NormMlp):
    """`timm.models.tiny_vit.NormMlp`: `mlp.front` is after its norm."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop1(self.act(self.fc1(x))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop2(self.fc2(x)))


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, rows, columns, dim = shapes.input_shape(path)
    module, attn, mlp = block.attn, f"{path}.attn", block.mlp
    check_known(block, path, arguments=("x",), children=("attn", "drop_path1", "mlp", "drop_path2", "local_conv"))
    window = windowed((rows, columns), (block.window_size, block.window_size))
    geometry = headwise_geometry(module, attn, children=("norm", "qkv", "proj"), dim=dim, **window)
    yield window_site(attn, geometry, block=path, fills=True)
    children = ("norm", "fc1", "act", "drop1", "fc2", "drop2")
    check_known(mlp, f"{path}.mlp", arguments=("x",), children=children)
    yield mlp_site(f"{path}.mlp", MlpGeometry(hidden=mlp.fc2.in_features, **map_fields(dim, rows, columns)))


class TimmTinyViT(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`."""

    name = "timm.tiny_vit"
    summary = "timm TinyViT of any size, including features_only"
    patched: ClassVar = {Attention: GraftedAttention, TinyVitBlock: GraftedBlock, NormMlp: GraftedNormMlp}
    models = (TinyVit,)
    blocks: ClassVar = {TinyVitBlock: _sites}
