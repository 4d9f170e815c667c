"""What stands on the page's canvases, pixel by pixel, against the numbers that the page holds, read here anew."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attngraft.recording.attention_maps import filters_to_attention_map, full_attention_map
from tests.report.explored import pixels

#: matplotlib's viridis at its quarters
VIRIDIS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]])

ALL = -1


def unsqueezed(plain: dict[str, Any]) -> Tensor:
    found = np.frombuffer(base64.b64decode(plain["bytes"]), np.int8).reshape(plain["shape"]) / 127
    return torch.from_numpy(np.sign(found) * found**2 * plain["largest"])


def among_places(layer: dict[str, Any]) -> Tensor:
    """(H, places, places): how much each place of a layer looks at each."""
    numbers = [each and unsqueezed(each) for each in layer["numbers"]]
    if layer["kind"] == "latents":
        theirs, ours = numbers
        return torch.zeros(layer["heads"], *[layer["rows"] * layer["columns"]] * 2) if ours is None else ours @ theirs
    if layer["kind"] == "filters":
        return filters_to_attention_map(numbers[0][None])[0]
    return full_attention_map(numbers[0], torch.tensor(layer["places"]).view(layer["rows"], layer["columns"]))[0]


def painted(driver: Any, canvas: Any, expected: Tensor) -> None:
    """The map stands there in its colors, each place as strong as its part of the largest."""
    found = pixels(driver, canvas)
    shares = (expected.abs() / expected.abs().max().clamp_min(1e-30)).view(found.shape[:2]).numpy()
    colors = np.stack([np.interp(shares * 4, range(5), channel) for channel in VIRIDIS.T], -1)
    assert np.abs(found[..., :3] - colors).max() <= 4  # a canvas keeps colors times opacity, in bytes


def opacity(driver: Any, expected: Tensor) -> None:
    """The same of how opaque the image's own canvas is, by the page's shade of 60%."""
    found = pixels(driver, driver.find_element("css selector", ".heat"))[..., 3]
    shares = (expected.abs() / expected.abs().max().clamp_min(1e-30)).view(found.shape).numpy()
    np.testing.assert_allclose(found, 255 * 0.6 * (0.35 + 0.65 * shares), atol=1)


@pytest.mark.parametrize("kind", ["vit", "swin", "bixt", "elsa"])
def test_the_maps_of_a_patch_are_painted_in_each_layer_and_head(opened: Any, kind: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    driver = opened(kind)
    picture = driver.find_element("css selector", ".picture")
    width, height = picture.size["width"], picture.size["height"]
    down, across = 0.4, 0.7
    offset = round((across - 0.5) * width), round((down - 0.5) * height)
    ActionChains(driver).move_to_element_with_offset(picture, *offset).click().perform()
    for index, layer in enumerate(driver.execute_script("return data.models[0].layers")):
        whole, columns = among_places(layer), layer["columns"]
        own = int(down * layer["rows"]) * columns + int(across * columns)
        for head in (ALL, *range(layer["heads"])):
            driver.execute_script("choose({ layer: arguments[0], head: arguments[1] })", index, head)
            for direction in ("to", "from"):
                driver.find_element("css selector", f"[value={direction}]").click()
                of_heads = whole[:, own] if direction == "to" else whole[:, :, own]
                expected = of_heads.mean(0) if head == ALL else of_heads[head]
                painted(driver, driver.find_element("css selector", ".heat"), expected)
                opacity(driver, expected)
                said = driver.find_element("css selector", ".summary").text
                assert f"The patch in row {own // columns}, column {own % columns} " in said
                best = int(expected.abs().argmax())
                where = f"row {best // columns}, column {best % columns}" if expected.any() else "no patch"
                assert where in said.split(";")[0].split(" att")[1]
        for head in range(layer["heads"]):
            cell = driver.find_element("css selector", f"[aria-label='{layer['site']}, head {head}'] canvas")
            painted(driver, cell, whole[head, :, own])


def test_a_latent_is_painted_where_it_looks_and_who_looks_at_it(opened: Any) -> None:
    driver = opened("bixt")
    layer = driver.execute_script("return data.models[0].layers[0]")
    theirs, ours = (unsqueezed(each) for each in layer["numbers"])
    next(each for each in driver.find_elements("css selector", ".tokens button") if each.text == "latent 5").click()
    heat = driver.find_element("css selector", ".heat")
    painted(driver, heat, theirs[:, 5].mean(0))
    assert "Latent 5 attends most to" in driver.find_element("css selector", ".summary").text
    driver.find_element("css selector", "[value=from]").click()
    painted(driver, heat, ours[:, :, 5].mean(0))
    assert not driver.find_element("css selector", ".chosen").is_displayed(), "it stands nowhere on the image"


def test_small_pictures_of_fine_maps_lose_no_place(opened: Any) -> None:
    """Of 40 x 50 places in a picture of 20 x 25, one that is page_attention at stands out wherever it is."""
    driver = opened("vit")
    for row, column in ((0, 0), (7, 12), (23, 31), (39, 49)):
        numbers = np.zeros((40, 50))
        numbers[row, column] = -0.3
        found, rows, columns = driver.execute_script("return pooled(arguments[0], 40, 50)", numbers.flatten().tolist())
        assert (rows, columns) == (20, 25)
        assert np.flatnonzero(found).tolist() == [row // 2 * 25 + column // 2]
        assert max(found) == 0.3
    assert driver.execute_script("return pooled([1, 2, 3, 4], 2, 2)") == [[1, 2, 3, 4], 2, 2]
