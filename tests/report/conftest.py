"""Chromium without a window, and pages opened in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attngraft.report.explorer import explore
from tests.report.explored import models


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (90, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a <picture>.png")
    return tmp_path / "a <picture>.png"


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="pip install selenium, and Chromium, to look at the page"
    )
    chromium, chromedriver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if not (chromium and chromedriver):
        pytest.skip("no Chromium with its driver here (Debian: apt install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1400"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield found
    found.quit()


@pytest.fixture
def opened(driver: Any, picture: Path, tmp_path: Path) -> Iterator[Any]:
    """Opens a page of models by kind; at the end nothing may stand in the browser's log."""

    def open_page(*kinds: str, **names: str) -> Any:
        page = explore({names.get(kind, kind): models(kind) for kind in kinds}, picture, out=tmp_path / "page.html")
        driver.get(page.as_uri())
        # from one place for every model, not from the most structured
        driver.execute_script("choose({ layer: 0, head: ALL, query: { down: 0.5, across: 0.5 } })")
        return driver

    yield open_page
    assert driver.get_log("browser") == []
