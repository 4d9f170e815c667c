"""Cross-attention between latents and tokens as complete layers, output projections included.

Parameters have the names and the row order of the published checkpoints: the first rows of a fused projection are the
references, the last ones the values.
"""

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from attngraft.attention.recorder import Recordable
from attngraft.errors import UsageError
from attngraft.mechanisms.bixt.ops import bidirectional_attention, projected_attention

#: tensors that a two-way layer records
RECORDED = ("scores", "latents_to_tokens", "tokens_to_latents")


class _CrossAttention(Recordable, nn.Module):
    """Projections and dropout of both layers; `two_way` adds values of the latents and outputs of the tokens."""

    two_way = False

    def __init__(
        self,
        dim_latents: int,
        dim_tokens: int,
        *,
        dim_attention: int,
        heads: int,
        rv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.scale = head_width(dim_attention, heads) ** -0.5
        self.attn_drop = attn_drop
        if self.two_way:
            self.rv_latents = nn.Linear(dim_latents, 2 * dim_attention, bias=rv_bias)
        else:
            self.r_latents = nn.Linear(dim_latents, dim_attention, bias=rv_bias)
        self.rv_patches = nn.Linear(dim_tokens, 2 * dim_attention, bias=rv_bias)
        self.proj_lat = nn.Linear(dim_attention, dim_latents)
        if self.two_way:
            self.proj_pat = nn.Linear(dim_attention, dim_tokens)
        self.proj_drop = nn.Dropout(proj_drop)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"


class BidirectionalCrossAttention(_CrossAttention):
    """Bi-directional cross-attention: latents attend to tokens and tokens to latents, through one similarity.

        r_l, v_l = rv_latents(latents);  r_t, v_t = rv_patches(tokens)      per head
        A = r_l r_t^T / sqrt(d)
        latents' = proj_lat(softmax over tokens(A) v_t)
        tokens'  = proj_pat(softmax over latents(A^T) v_l)

    Args:
        dim_latents: width of the latents.
        dim_tokens: width of the tokens.
        dim_attention: H d, width of references and values.
        rv_bias: biases in the projections to references and values; the output projections always have biases.
        attn_drop: dropout probability of attention weights, independent in each direction.
        proj_drop: dropout after the output projections.

    Records the maps after softmax: `latents_to_tokens` (B, H, M, N), whose rows are the maps of the latents, and
    `tokens_to_latents` (B, H, N, M).

    Raises:
        UsageError: `dim_attention` is not divisible by H.

    Source: BiXT, section 3.2.
    """

    two_way = True

    def forward(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Attend between latents (B or 1, M, dim_latents) and tokens (B, N, dim_tokens), and return both with batch size B.

        Raises:
            UsageError: the batch sizes of latents and tokens differ.
        """
        if latents.shape[0] not in (1, tokens.shape[0]):
            raise UsageError(
                f"latents must have batch size 1 or that of the tokens, {tokens.shape[0]}, not {latents.shape[0]}"
            )
        dropout = self.training and self.attn_drop
        if not dropout and are_plain(self.rv_latents, self.rv_patches, self.proj_lat, self.proj_pat):
            return self._dropped(*self._attend_projected(latents, tokens))
        for_latents, for_tokens = self.attend(latents, tokens)  # a call, which frees references and values on return
        return self._dropped(self.proj_lat(merge_heads(for_latents)), self.proj_pat(merge_heads(for_tokens)))

    def _attend_projected(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run `forward` with the tokens' projections inside the operation.

        Reads the weights instead of calling the modules, whose overhead is noticeable with few tokens. Maps are computed
        for a recorder only, separately from the output.
        """
        projected = F.linear(latents, self.rv_latents.weight, self.rv_latents.bias)
        tokens_in, tokens_out = self.rv_patches, self.proj_pat
        r_latents, v_latents = split_parts(projected, 2, self.heads)
        if self.is_recording(*RECORDED):
            count = len(tokens_in.weight) // 2
            bias = None if tokens_in.bias is None else tokens_in.bias[:count]
            references = F.linear(tokens, tokens_in.weight[:count], bias)
            self.record_maps(r_latents, *split_parts(references, 1, self.heads))
        for_latents, tokens = projected_attention.unchecked(
            r_latents,
            v_latents,
            tokens,
            tokens_in.weight,
            tokens_in.bias,
            tokens_out.weight,
            tokens_out.bias,
            scale=self.scale,
        )
        return F.linear(merge_heads(for_latents), self.proj_lat.weight, self.proj_lat.bias), tokens

    def _dropped(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if not self.proj_drop.training:  # with few tokens, even two calls without effect take noticeable time
            return latents, tokens
        return self.proj_drop(latents), self.proj_drop(tokens)

    def attend(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return both outputs by head, (B, H, M, d) and (B, H, N, d), before the output projections."""
        r_latents, v_latents = split_parts(self.rv_latents(latents), 2, self.heads)
        r_tokens, v_tokens = split_parts(self.rv_patches(tokens), 2, self.heads)
        if self.is_recording(*RECORDED):
            self.record_maps(r_latents, r_tokens)
        dropout = self.attn_drop if self.training else 0.0
        return bidirectional_attention.unchecked(
            r_latents, r_tokens, v_latents, v_tokens, scale=self.scale, dropout=dropout
        )

    def record_maps(self, r_latents: Tensor, r_tokens: Tensor) -> None:
        """Record the similarity and both of its softmaxes."""
        scores = self.scale * r_latents @ r_tokens.transpose(-2, -1)
        self.record("scores", scores)
        self.record("latents_to_tokens", scores.softmax(dim=-1))
        self.record("tokens_to_latents", scores.transpose(-2, -1).softmax(dim=-1))


class OneSidedCrossAttention(_CrossAttention):
    """Latents attend to tokens only, for the last layer, whose tokens are not used.

        r_l = r_latents(latents);  r_t, v_t = rv_patches(tokens)
        latents' = proj_lat(softmax over tokens(r_l r_t^T / sqrt(d)) v_t)

    Arguments, errors and source as for `BidirectionalCrossAttention`. Records `latents_to_tokens`.
    """

    map_name = "latents_to_tokens"  #: name of the recorded map

    def forward(self, latents: Tensor, tokens: Tensor) -> Tensor:
        """Attend from (B or 1, M, dim_latents) to (B, N, dim_tokens), and return (B, M, dim_latents)."""
        (r_latents,) = split_parts(self.r_latents(latents), 1, self.heads)
        r_tokens, v_tokens = split_parts(self.rv_patches(tokens), 2, self.heads)
        if self.is_recording("scores", self.map_name):
            scores = self.scale * r_latents @ r_tokens.transpose(-2, -1)
            self.record("scores", scores)
            self.record(self.map_name, scores.softmax(dim=-1))
        heads = F.scaled_dot_product_attention(
            r_latents.expand(tokens.shape[0], -1, -1, -1),
            r_tokens,
            v_tokens,
            dropout_p=self.attn_drop if self.training else 0.0,
            scale=self.scale,
        )
        return self.proj_drop(self.proj_lat(merge_heads(heads)))


class TokensAttend(OneSidedCrossAttention):
    """`OneSidedCrossAttention` with swapped roles: tokens attend to latents.

    Arguments and parameters named "latents" refer to the tokens, and vice versa.
    """

    map_name = "tokens_to_latents"


def head_width(dim: int, heads: int) -> int:
    """Return the width of a head.

    Raises:
        UsageError: `dim` is not divisible by the number of heads.
    """
    if heads < 1 or dim % heads:
        raise UsageError(
            f"the attention width {dim} is not divisible by {heads} heads; choose another number of heads or another width"
        )
    return dim // heads


def are_plain(*linears: nn.Module) -> bool:
    """Return whether calling these layers only multiplies by the weight and adds the bias, without hooks."""
    for linear in linears:
        if type(linear) is not nn.Linear or linear._forward_hooks or linear._forward_pre_hooks:
            return False
        if linear._backward_hooks or linear._backward_pre_hooks or "forward" in vars(linear):
            return False
    return not (
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


def split_parts(projected: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Split (B, N, parts * H * d), the parts one after another, into tensors (B, H, N, d)."""
    batch, count, width = projected.shape
    return projected.view(batch, count, parts, heads, width // (parts * heads)).permute(2, 0, 3, 1, 4).unbind()


def merge_heads(values: Tensor) -> Tensor:
    """Return (B, H, N, d) as (B, N, H * d)."""
    return values.transpose(1, 2).flatten(2)
