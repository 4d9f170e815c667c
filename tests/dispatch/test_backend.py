"""The reference alone, for a while."""

from __future__ import annotations

import os

import pytest

from attngraft.dispatch import ENVIRONMENT, reference_backend


@pytest.mark.parametrize("before", [None, "eager"])
def test_the_backend_is_put_back(monkeypatch: pytest.MonkeyPatch, before: str | None):
    if before is None:
        monkeypatch.delenv(ENVIRONMENT, raising=False)
    else:
        monkeypatch.setenv(ENVIRONMENT, before)
    with reference_backend():
        assert os.environ[ENVIRONMENT] == "reference"
    assert os.environ.get(ENVIRONMENT) == before
