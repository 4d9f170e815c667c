"""The authors' weights: their checkpoints as they are published, or converted by `attngraft convert`.

    model = timm.create_model("bixt_ti_l64_p16_ft384")
    load_official(model, "bixt_ti_l64_p16.pth.tar")     # trained at 224 pixels

Nothing is fetched. `create_model(..., weights=FILE)` and `--weights FILE` read the same files.
"""

from __future__ import annotations

import os

from torch import nn

from attngraft.attention import is_graft, plain_class
from attngraft.errors import UsageError
from attngraft.models.weights import Fitted, read_weights

#: classes whose parameters have the names of the authors' checkpoints
OFFICIAL = {
    "attngraft.models.bixt.model.BiXT": "bixt_ti_l64_p16",
    "attngraft.models.elsa.swin.ElsaSwin": "elsa_swin_tiny",
    "attngraft.models.elsa.volo.ElsaVolo": "elsa_volo_d1",
    "attngraft.models.t2t_vit.T2TViT": "t2t_vit_14",
    "timm.models.volo.VOLO": "volo_d1_224",
}


def load_official(model: nn.Module, path: str | os.PathLike[str], *, new_head: bool = False) -> Fitted:
    """Fill `model` with published weights; says what became of them.

    The checkpoint may be a zip around `model_best.pth.tar`, hold a bare state dict or keep it under `state_dict`, `model`,
    `state_dict_ema` or `model_ema` (the average is preferred), with names that begin with `module.` and `_orig_mod.`, in
    torch's or safetensors' format. What a model computes by itself (codes of positions, tables of windows) is its own or
    made to fit, so weights of one size of images serve any other; all else must be there, be of the same shape, and nothing
    may be left over.

    Args:
        model: a BiXT, ELSA-Swin, ELSA-VOLO, T2T-ViT, or timm's VOLO, without grafts.
        new_head: let a head for another number of classes stay new.

    Raises:
        UsageError: the model is none of these or has grafts, or there is no such file.
        HostError: the file is damaged or holds more than tensors and arguments; tensors are missing, left over or of other
            shapes, all of which are listed; or they are of a model with other heads. The model was left as it was.
    """
    kind = plain_class(model)
    if f"{kind.__module__}.{kind.__qualname__}" not in OFFICIAL:
        raise UsageError(
            f"load_official fills a model whose authors published weights ({', '.join(OFFICIAL.values())}, ...), not a "
            f"{kind.__name__}; attngraft.create_model(NAME, weights=FILE) reads files for others"
        )
    if any(map(is_graft, model.state_dict())):
        raise UsageError("load_official fills a model without grafts; load first, then call attngraft.graft")
    file = read_weights(path)
    fitted = file.fill_host(model, new_head=new_head)
    file.fill_grafts(model)  # which refuses a file that has some
    return fitted
