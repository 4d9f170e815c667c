"""A Hugging Face cache as a download writes it, for machines without a network."""

from __future__ import annotations

import hashlib
from pathlib import Path

import safetensors.torch
from torch import nn


def fill(home: Path, tag: str, model: nn.Module) -> Path:
    """Put the weights of `model` where HF_HOME=`home` has those of timm's `tag`; returns the file that readers see."""
    repository = home / "hub" / f"models--timm--{tag}"
    content = safetensors.torch.save({name: value.contiguous() for name, value in model.state_dict().items()})
    commit, digest = hashlib.sha1(tag.encode()).hexdigest(), hashlib.sha256(content).hexdigest()
    for folder in ("blobs", "refs", f"snapshots/{commit}"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "blobs" / digest).write_bytes(content)
    file = repository / "snapshots" / commit / "model.safetensors"
    file.symlink_to(f"../../blobs/{digest}")
    return file
