"""Gradient of the loss with respect to the tokens at each position of an MLP, layer by layer (CB, App. B.5)."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional as F

from attngraft.analysis.layers import LayerAxis
from attngraft.analysis.panels import table
from attngraft.analysis.predictions import class_logits, single_labels
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, by_model
from attngraft.analysis.tensors import find_tensors
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.targets.handle import ModelHandle

_POSITIONS = {"mlp.front": "front", "mlp.mid": "mid", "mlp.end": "end"}
_BATCH = 8  #: largest batch size for computing gradients

_Layers = dict[str, dict[str, float]]  #: position -> site -> gradient


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> _Layers:
    images = request.images
    labels = torch.from_numpy(single_labels(images)[images.sample(request.limit)].astype(np.int64))
    find_tensors(request, model, _POSITIONS, missing="no chosen layer is an MLP; choose other layers with --sites")
    squares: dict[tuple[str, str], float] = defaultdict(float)
    tokens: dict[tuple[str, str], int] = defaultdict(int)
    start = 0
    for inputs in replace(request, batch=min(request.batch, _BATCH)).batches(model):
        with torch.enable_grad(), record(model.model, _POSITIONS, sites=request.sites, detach=False) as recording:
            outputs = model.model(inputs.detach().requires_grad_())
            logits = class_logits(model, images, outputs)
            target = labels[start : start + len(inputs)].to(logits.device)
            loss = F.cross_entropy(logits.float(), target, reduction="sum")
        start += len(inputs)
        found = {(site, name): recording[site][name] for site in recording for name in recording[site]}
        gradients = torch.autograd.grad(loss, list(found.values()), allow_unused=True)
        for key, gradient in zip(found, gradients, strict=True):
            if gradient is not None:  # None: the output does not depend on these tokens
                squares[key] += float(gradient.double().square().sum())
                tokens[key] += gradient[..., 0].numel()
    layers: _Layers = {}
    for (site, name), total in squares.items():
        value = (total / tokens[site, name]) ** 0.5
        if not np.isfinite(value):
            raise RecordError(f"{site}: its gradients are NaN or infinite: the model diverged in training")
        layers.setdefault(_POSITIONS[name], {})[site] = value
    return layers


def _present(request: AnalysisRequest, models: Measured[_Layers]) -> Content:
    axis = LayerAxis.of(list(sites) for _, _, layers in models for sites in layers.values())
    positions = [each for each in _POSITIONS.values() if any(each in layers for _, _, layers in models)]
    return Content(
        note="Root mean square, over images and tokens, of the norm of the gradient of the cross-entropy with respect to a "
        "token at the front (before the first linear layer), in the middle (after the activation) and at the end of each "
        "MLP, in evaluation mode. A graft at a position is applied before the token is read. Without dropout, cb in the "
        "middle and cb at the end are the same function, so with equal weights their gradients at the front are equal.",
        panels=[
            axis.curves(
                f"gradient at the {'middle' if position == 'mid' else position} of the MLP",
                [axis.line(name, index, layers[position]) for index, name, layers in models if position in layers],
            )
            for position in positions
        ],
        table=table(
            ["model", "layer", "position", "gradient"],
            [
                (name, site, position, value)
                for _, name, layers in models
                for position in positions
                for site, value in layers.get(position, {}).items()
            ],
        ),
    )


ANALYSIS = Analysis(
    name="gradients",
    title="Gradients in the MLPs",
    summary="gradient of the loss at the front, middle and end of each MLP, on labeled images",
    source="CB, App. B.5",
    run=by_model(_measure, _present),
    per_image=True,
)
