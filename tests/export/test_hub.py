"""Uploading, against a stand-in for the Hub's client; and, offline, against the real one."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi

import attngraft
from attngraft.errors import ExportError, UsageError
from attngraft.export.run import export_run
from tests.export.runs import make_run


class FakeApi:
    """Remembers what it was asked, if the real client could be asked so; raises `error` when asked to upload."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.calls = error, []

    def create_repo(self, *given: Any, **asked: Any) -> str:
        arguments = bound("create_repo", given, asked)
        self.calls.append(("create", arguments.pop("repo_id"), arguments))
        return f"https://hub.example/{self.calls[-1][1]}"

    def upload_folder(self, *given: Any, **asked: Any) -> None:
        arguments = bound("upload_folder", given, asked)
        if self.error is not None:
            raise self.error
        files = sorted(path.name for path in Path(arguments["folder_path"]).iterdir())
        self.calls.append(("upload", files, arguments["repo_id"]))


def bound(method: str, given: tuple[Any, ...], asked: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name; a TypeError where `huggingface_hub.HfApi` would not take them."""
    arguments = inspect.signature(getattr(HfApi, method)).bind(None, *given, **asked).arguments
    del arguments["self"]
    return arguments


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    export_run(make_run(folder / "run", "cb"), folder / "out", to=["hf"])
    return folder / "out"


def test_the_whole_folder_goes_up(exported: Path) -> None:
    api = FakeApi()
    assert attngraft.push_to_hub(exported, "jane/flowers", private=True, api=api) == "https://hub.example/jane/flowers"
    files = ["README.md", "attngraft.json", "checksums.json", "config.json", "grafts", "model.safetensors"]
    assert api.calls == [
        ("create", "jane/flowers", {"private": True, "exist_ok": True}),
        ("upload", files, "jane/flowers"),
    ]


def test_the_client_takes_what_it_is_asked() -> None:
    """The stand-in is as strict as the real one; and the real one takes a token and our name."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'secret'"):
        FakeApi().create_repo("jane/flowers", secret=True)
    with pytest.raises(TypeError, match="missing a required argument: 'folder_path'"):
        FakeApi().upload_folder(repo_id="jane/flowers")
    inspect.signature(HfApi).bind(library_name="attngraft", token="hf_not_a_token")


@pytest.mark.parametrize("name", ["flowers", "a/b/c", "jane/flo wers", "jane/", "/x", "jane/--x"])
def test_names_are_checked_before_anything_happens(exported: Path, name: str) -> None:
    api = FakeApi()
    with pytest.raises(UsageError, match="USER/NAME"):
        attngraft.push_to_hub(exported, name, api=api)
    assert api.calls == []


def test_only_exported_models_go_up(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="not an exported model"):
        attngraft.push_to_hub(tmp_path, "jane/flowers", api=FakeApi())


def refused(status: int) -> Exception:
    error = OSError(f"{status} Client Error\nmore")
    error.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (refused(401), "hf auth login"),
        (refused(403), "write access"),
        (refused(500), "the Hub refused"),
        (ConnectionError("no route"), "cannot be reached"),
    ],
)
def test_failures_say_what_to_do_and_that_the_model_stays(exported: Path, error: Exception, remedy: str) -> None:
    with pytest.raises(ExportError, match=remedy) as told:
        attngraft.push_to_hub(exported, "jane/flowers", api=FakeApi(error))
    assert f"the model is still in {exported}" in str(told.value)


def test_mistakes_of_ours_are_not_dressed_up(exported: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        attngraft.push_to_hub(exported, "jane/flowers", api=FakeApi(ZeroDivisionError()))


def test_the_real_client_offline(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ExportError, match="HF_HUB_OFFLINE is set"):
        attngraft.push_to_hub(exported, "jane/flowers", token="hf_not_a_token")
