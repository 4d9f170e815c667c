"""Upload of exported folders to the Hugging Face Hub."""

import os
from pathlib import Path
from typing import Any

from attngraft.errors import ExportError, UsageError, check_types
from attngraft.saved.manifest import read_manifest

#: names of errors of huggingface_hub and its HTTP clients, whose classes change between releases
_OFFLINE = {"OfflineModeIsEnabled"}
_NO_TOKEN = {"LocalTokenNotFoundError"}
_NETWORK = {"HTTPError", "TransportError", "RequestException", "ConnectionError", "TimeoutError"}


def push_to_hub(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    api: Any = None,
) -> str:
    """Upload an exported folder to the Hub and return the URL of the repository.

    Args:
        folder: a folder made by `attngraft export`.
        repo_id: repository, USER/NAME; it is created if needed.
        private: visibility of a new repository; None: the account's default. That of an existing one is not changed.
        token: token with write access; None: the token of `hf auth login` or HF_TOKEN.
        api: client to use instead of `huggingface_hub.HfApi`.

    Raises:
        UsageError: `repo_id` is not of the form USER/NAME.
        ExportError: the folder is not an exported model, or there is no token, permission or network; the message contains
            the remedy. The folder is unchanged.
    """
    check_types(folder=(folder, str, os.PathLike), repo_id=(repo_id, str), token=(token, str, None))
    path = Path(folder)
    read_manifest(path)
    check_name(repo_id)
    if api is None:
        from huggingface_hub import HfApi  # local import: it is slow

        api = HfApi(library_name="attngraft", token=token)
    try:
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=str(path), commit_message="Model exported by attngraft")
    except Exception as error:  # the client and its HTTP library raise arbitrary errors
        reason = _reason(error)
        if reason is None:
            raise
        raise ExportError(f"{repo_id}: {reason}; the model is still in {path}") from error
    return str(url)


def check_name(repo_id: str) -> None:
    """Check that `repo_id` has the form USER/NAME, before anything is exported.

    Raises:
        UsageError: `repo_id` is not of this form.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    reason = ""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        reason = f": {error}"
    if reason or "/" not in repo_id:
        raise UsageError(f"repository must be USER/NAME (such as jane/flowers-vit), got {repo_id!r}{reason}") from None


def _reason(error: Exception) -> str | None:
    kinds = {base.__name__ for base in type(error).__mro__}
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    status = getattr(getattr(error, "response", None), "status_code", None)
    if kinds & _OFFLINE:
        return "HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it, or upload the folder from another machine"
    if kinds & _NO_TOKEN or status == 401:
        return "no valid token for the Hub; run `hf auth login`, or set HF_TOKEN to a token with write access"
    if status == 403:
        return f"this account has no write access ({first}); use a token with write access, or another name"
    if status is not None:
        return f"the Hub refused the upload ({first})"
    if kinds & _NETWORK or isinstance(error, OSError):
        return (
            f"the Hub cannot be reached ({type(error).__name__}: {first}); try again with a network connection, or upload "
            "the folder from another machine (hf upload USER/NAME FOLDER)"
        )
    return None
