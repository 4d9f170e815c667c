"""Reasons why pretrained weights are not available, with remedies."""

import difflib
from collections.abc import Iterator
from pickle import UnpicklingError

import timm
from timm.models import get_pretrained_cfg, is_model, list_pretrained

from attngraft.downloads import DownloadRefused

#: error classes of huggingface_hub, urllib and HTTP clients, by name because their modules differ between releases
_GATED = {"GatedRepoError"}
_ABSENT = {"RepositoryNotFoundError", "RevisionNotFoundError", "RemoteEntryNotFoundError"}
_NETWORK = {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "URLError", "HfHubHTTPError"}


def why_no_weights(name: str, error: Exception, *, unreachable: Exception | None = None) -> str | None:
    """Return why timm failed to load the weights of `name`, with a remedy; None for other errors.

    `unreachable` is the error of the attempt to reach the Hub, if it failed.
    """
    architecture, _, tag = name.partition(".")
    text = str(error)
    if tag and "Invalid pretrained tag" in text:
        available = list_pretrained(f"{architecture}.*")
        return f"timm has no weights {tag!r} for {architecture}; available: {', '.join(available) or 'none'}"
    if "No pretrained weights exist" in text:
        near = difflib.get_close_matches(name, list_pretrained(), n=3, cutoff=0.5)
        hint = f" (but it has weights for {', '.join(near)})" if near else ""
        return f"timm {timm.__version__} has no weights for {name}{hint}; train without --pretrained, or pass a weights file"
    if name.startswith("local-dir:") and isinstance(error, UnpicklingError):  # timm before 1.0.26
        return f"timm {timm.__version__} cannot load the .safetensors file of {name}; run pip install -U timm"
    if isinstance(unreachable, DownloadRefused) or any(isinstance(each, DownloadRefused) for each in _chain(error)):
        shown = name if ":" in name else f"the weights of {name}"
        return f"{shown}: not in the cache, and {unreachable or DownloadRefused()}"
    kinds = {base.__name__ for link in _chain(error) for base in type(link).__mro__}
    repository = _repository(name)
    if kinds & _GATED:
        return (
            f"the weights of {name} are gated: request access at https://huggingface.co/{repository}, then log in "
            "(`hf auth login`, or HF_TOKEN in the environment) and try again"
        )
    if kinds & _ABSENT:
        return f"the Hugging Face Hub has no {repository}, or it is private (log in: `hf auth login`, or HF_TOKEN)"
    if kinds & _NETWORK or isinstance(error, ConnectionError | TimeoutError):
        last = unreachable or list(_chain(error))[-1]
        cause = (str(last).strip() or type(last).__name__).splitlines()[0].rstrip(".")
        if name.startswith("hf:"):
            return (
                f"{name} is not in the cache and cannot be downloaded ({cause}): without a network, run hf download "
                f"{repository} --local-dir FOLDER elsewhere, and pass hf:FOLDER"
            )
        return (
            f"the weights of {name} are not in the cache and cannot be downloaded ({cause}): without a network, download "
            f"model.safetensors of https://huggingface.co/{repository} elsewhere and pass it with --weights FILE "
            "(eval, analyze, bench: --host-weights FILE), or set HF_HOME to a copy of a Hugging Face cache that has it"
        )
    return None


def _repository(name: str) -> str:
    """Return the Hub repository with the weights of `name`."""
    if ":" in name:
        return name.partition(":")[2]
    found = get_pretrained_cfg(name, allow_unregistered=True) if is_model(name.partition(".")[0]) else None
    return str((found and found.hf_hub_id) or f"timm/{name}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
