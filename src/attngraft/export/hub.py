"""Uploading an exported folder to the Hugging Face Hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from attngraft.errors import ExportError, UsageError
from attngraft.saved.manifest import read_manifest

#: names of errors of huggingface_hub and of the HTTP clients below it, which change with the release
_OFFLINE = {"OfflineModeIsEnabled"}
_NO_TOKEN = {"LocalTokenNotFoundError"}
_NETWORK = {"HTTPError", "TransportError", "RequestException", "ConnectionError", "TimeoutError"}


class Api(Protocol):
    """What is used of `huggingface_hub.HfApi`."""

    def create_repo(self, repo_id: str, *, private: bool | None, exist_ok: bool) -> Any: ...

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> Any: ...


def push_to_hub(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    api: Api | None = None,
) -> str:
    """Upload an exported folder to `repo_id`, which is made if it is not there; returns its address.

    Args:
        folder: what `attngraft export` made.
        repo_id: USER/NAME.
        private: of a repository that is made now; None: the account's own rule. One that is there stays as it is.
        token: with write access; None: what `hf auth login` or HF_TOKEN says.
        api: another client than `huggingface_hub.HfApi`.

    Raises:
        UsageError: no such form of a name.
        ExportError: no exported model, no token, not allowed, no network; says what to do. The folder stays as it was.
    """
    path = Path(folder)
    read_manifest(path)
    check_name(repo_id)
    if api is None:
        from huggingface_hub import HfApi

        api = HfApi(library_name="attngraft", token=token)
    client = api

    def upload() -> str:
        address = client.create_repo(repo_id, private=private, exist_ok=True)
        client.upload_folder(repo_id=repo_id, folder_path=str(path), commit_message="Model exported by attngraft")
        return str(address)

    return _told(upload, repo_id, path)


def check_name(repo_id: str) -> None:
    """Refuse what is no USER/NAME, before anything is made.

    Raises:
        UsageError: it is not.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UsageError(f"a repository is USER/NAME (jane/flowers-vit), not {repo_id!r}: {error}") from None
    if "/" not in repo_id:
        raise UsageError(f"a repository is USER/NAME (jane/flowers-vit), not {repo_id!r}")


def _told(upload: Callable[[], str], repo_id: str, folder: Path) -> str:
    """What `upload` returns, with its errors in words."""
    try:
        return upload()
    except Exception as error:  # the Hub's client and the HTTP client below it raise what they like
        reason = _reason(error)
        if reason is None:
            raise
        raise ExportError(f"{repo_id}: {reason}; the model stays in {folder}") from error


def _reason(error: Exception) -> str | None:
    kinds = {base.__name__ for base in type(error).__mro__}
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    status = getattr(getattr(error, "response", None), "status_code", None)
    if kinds & _OFFLINE:
        return "HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it, or copy the folder to where there is a network"
    if kinds & _NO_TOKEN or status == 401:
        return "the Hub knows no valid token of yours; run `hf auth login`, or set HF_TOKEN to one with write access"
    if status == 403:
        return f"this account may not write there ({first}); use a token with write access, or another name"
    if status is not None:
        return f"the Hub refused ({first})"
    if kinds & _NETWORK or isinstance(error, OSError):
        return (
            f"the Hub cannot be reached ({type(error).__name__}: {first}); try again when there is a network, or upload the "
            "folder from another machine (hf upload USER/NAME FOLDER)"
        )
    return None
