"""Why timm's weights of a model could not be had, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import timm
from timm.models import get_pretrained_cfg, is_model, list_pretrained

#: names of errors of huggingface_hub, urllib and the HTTP clients below them; the clients change with the release
_GATED = {"GatedRepoError"}
_ABSENT = {"RepositoryNotFoundError", "RevisionNotFoundError", "RemoteEntryNotFoundError"}
_NETWORK = {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "URLError", "HfHubHTTPError"}


def why_no_weights(name: str, error: Exception) -> str | None:
    """A sentence for `timm.create_model(name, pretrained=True)` having failed with `error`; None for other failures."""
    architecture, _, tag = name.partition(".")
    text = str(error)
    if tag and "Invalid pretrained tag" in text:
        there = list_pretrained(f"{architecture}.*")
        return f"timm has no weights {tag!r} for {architecture}; there are {', '.join(there) or 'none'}"
    if "No pretrained weights exist" in text:
        near = difflib.get_close_matches(name, list_pretrained(), n=3, cutoff=0.5)
        hint = f" (it has some for {', '.join(near)})" if near else ""
        return f"timm {timm.__version__} has no weights for {name}{hint}; train without, or give a file of your own"
    kinds = {base.__name__ for link in _chain(error) for base in type(link).__mro__}
    where = _repository(name)
    if kinds & _GATED:
        return (
            f"the weights of {name} are gated: ask for access at https://huggingface.co/{where}, then log in "
            "(`hf auth login`, or HF_TOKEN in the environment) and try again"
        )
    if kinds & _ABSENT:
        return f"the Hugging Face Hub has no {where}, or it is private (log in: `hf auth login`, or HF_TOKEN)"
    if kinds & _NETWORK or isinstance(error, ConnectionError | TimeoutError):
        return (
            f"the weights of {name} are not in the cache and cannot be fetched ({_first_cause(error)}). Without a "
            f"network: download model.safetensors of https://huggingface.co/{where} elsewhere and give the file "
            "(--weights FILE, host.weights), or copy a Hugging Face cache that has it and set HF_HOME to it; "
            "HF_HUB_OFFLINE=1 ends the attempts at once"
        )
    return None


def _repository(name: str) -> str:
    """Where on the Hub the weights of `name` are."""
    if ":" in name:
        return name.partition(":")[2]
    config = get_pretrained_cfg(name, allow_unregistered=True) if is_model(name.partition(".")[0]) else None
    return str((config and config.hf_hub_id) or f"timm/{name}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_cause(error: Exception) -> str:
    """What went wrong at the bottom, in its own words."""
    text = str(list(_chain(error))[-1]).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")
