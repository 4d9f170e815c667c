"""The explorer's page: that it is whole and safe, and, in headless Chromium, that it shows what was recorded."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import attngraft
import attngraft.models  # registers BiXT
from attngraft.errors import DataError, UsageError
from attngraft.report import explorer
from attngraft.report.explorer import explore, explore_handles
from attngraft.targets.handle import model_handle
from attngraft.tasks.task import Serving
from attngraft.training.run_folder import read_run
from tests.analysis.requests import predicting_masks
from tests.analysis.test_explorer import vit
from tests.export.runs import make_run
from tests.report.explored import close, models, page_attention, place, seen
from tests.tasks.segmentation.drawings import CLASSES, section, write_drawings

#: as an attacker would call a model
NASTY = "</script><script>document.title = 'taken'</script><b>&amp;"


# --- the file ---------------------------------------------------------------------------------------------------------


def test_what_users_write_is_text_and_only_its_own_script_runs(picture: Path, tmp_path: Path) -> None:
    page = explore({NASTY: vit()}, picture, out=tmp_path / "page.html", title=NASTY).read_text(encoding="utf-8")
    assert NASTY not in page
    assert page.count("<script") == 2
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    expected = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{expected}'" in page
    assert "default-src 'none'" in page
    assert re.findall(r"https?://[\w./]+", page) == ["http://www.w3.org/2000/svg"], "nothing is fetched"
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert json.loads(data)["models"][0]["name"] == NASTY


def test_a_page_of_a_vit_s_is_small(picture: Path, tmp_path: Path) -> None:
    page = explore({"ViT-S": timm.create_model("vit_small_patch16_224")}, picture, out=tmp_path / "page.html")
    assert page.stat().st_size < 10e6


def test_gray_models_see_gray(picture: Path, tmp_path: Path) -> None:
    page = explore({"gray": vit(in_chans=1)}, picture, out=tmp_path / "page.html")
    assert page.is_file()


@pytest.mark.parametrize("change", [lambda model: model.half(), lambda model: torch.compile(model, backend="eager")])
def test_models_as_people_have_them(change: Any, picture: Path, tmp_path: Path) -> None:
    assert explore({"a": change(vit())}, picture, out=tmp_path / "page.html").is_file()


def test_a_small_picture_is_cropped_as_timm_does(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "small.png")
    model = vit()
    page = explore({"a": model}, tmp_path / "small.png", out=tmp_path / "page.html").read_text(encoding="utf-8")
    (data,) = re.findall(r"data:image/png;base64,([^\"]+)", page)
    with Image.open(io.BytesIO(base64.b64decode(data))) as shown:
        ours = torch.from_numpy(np.array(shown)).movedim(-1, 0) / 255
    mean, std = (torch.tensor(model.pretrained_cfg[each]).view(3, 1, 1) for each in ("mean", "std"))
    torch.testing.assert_close((ours - mean) / std, seen(model, tmp_path / "small.png")[0], atol=1e-5, rtol=0)


def data_of(page: Path) -> dict[str, Any]:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.S)
    found: dict[str, Any] = json.loads(data)
    return found


def test_the_image_is_what_the_model_sees_at_its_own_resolution(tmp_path: Path) -> None:
    pixels = np.zeros((400, 600, 3), np.uint8)
    pixels[:, 300:] = 255  # the middle is an edge
    pixels[:18] = pixels[-18:] = (255, 0, 0)  # cropped away: 20 pixels at both ends
    Image.fromarray(pixels).save(tmp_path / "large.png")
    page = explore({"a": vit()}, tmp_path / "large.png", out=tmp_path / "page.html")
    (stored,) = re.findall(r"data:image/jpeg;base64,([^\"]+)", page.read_text(encoding="utf-8"))
    with Image.open(io.BytesIO(base64.b64decode(stored))) as image:
        shown = np.array(image).astype(int)
    assert shown.shape == (360, 360, 3)  # 90% of the shorter side
    assert (shown[:, :175] < 30).all()
    assert (shown[:, 185:] > 225).all()


def test_two_models_open_at_a_layer_of_both(picture: Path, tmp_path: Path) -> None:
    deep = models("vit")
    shallow = vit(depth=1, reg_tokens=1)
    page = explore({"deep": deep, "shallow": shallow}, picture, out=tmp_path / "page.html")
    assert data_of(page)["opening"]["layer"] == 0
    one = data_of(explore({"deep": deep}, picture, out=page))["opening"]
    assert set(one) == {"model", "layer", "head", "query"}
    assert data_of(explore({"deep": deep}, picture, out=page))["opening"] == one, "the same each time"
    other = vit()
    attngraft.graft(other, "misa")  # rows that are not distributions
    assert data_of(explore({"a": other}, picture, out=page))["opening"] is None


def prediction(serving: Serving, outputs: list[float], image: Path) -> str:
    handle = replace(model_handle("a", vit()), serving=serving)
    return explorer._predicted(handle, torch.tensor([outputs]), image)


def test_predictions_are_written_plainly(tmp_path: Path) -> None:
    names = ("daisy", "rose")
    one = Serving(kind="images", input={}, activation="softmax", classes=names)
    image = tmp_path / "rose" / "1.png"
    assert prediction(one, [math.log(3), 0.0], image) == "predicted daisy (75%); true class rose"
    assert prediction(one, [math.log(3), 0.0], tmp_path / "1.png") == "predicted daisy (75%)"
    several = Serving(kind="images", input={}, activation="sigmoid", classes=names, threshold=0.5)
    assert prediction(several, [1.1, 1.1], tmp_path / "1.png") == "predicted daisy (75%), rose (75%)"
    assert prediction(several, [-1.1, -3.0], tmp_path / "1.png") == "no class predicted (highest: daisy, 25%)"
    numbers = Serving(kind="images", input={}, activation="none", classes=("age",), scale=(10.0,), offset=(5.0,))
    assert prediction(numbers, [2.0], tmp_path / "1.png") == "predicted age 25"
    assert explorer._predicted(model_handle("a", vit()), torch.zeros(1, 10), image) == ""


def test_what_makes_no_page(picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "page.html"
    with pytest.raises(UsageError, match="one or two models, but 3 were given"):
        explore({name: vit() for name in "abc"}, picture, out=out)
    with pytest.raises(DataError, match="cannot be read as an image"):
        explore({"a": vit()}, Path(__file__), out=out)
    with pytest.raises(DataError, match="nowhere.png"):
        explore({"a": vit()}, tmp_path / "nowhere.png", out=out)
    monkeypatch.setattr(explorer, "MOST_BYTES", 100)
    with pytest.raises(UsageError, match="choose fewer sites"):
        explore({"a": vit()}, picture, out=out)
    assert not out.exists()


# --- in a browser -----------------------------------------------------------------------------------------------------


def test_a_vits_looks_are_the_recorded_ones(opened: Any, picture: Path) -> None:
    driver, model = opened("vit"), models("vit")
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        model(seen(model, picture))
    for layer in (0, 1):
        weights = recording[f"blocks.{layer}.attn"]["weights"][0]
        own = 2 + 4 * 1 + 3  # behind the class token and a register
        for head, expected in ((0, weights[0]), (1, weights[1]), (-1, weights.mean(0))):
            for direction, row in (("to", expected[own]), ("from", expected[:, own])):
                found = page_attention(driver, layer, place(1, 3, (4, 4)), head, direction)
                assert close(found["map"], row[2:], weights)
                assert close(found["prefix"], row[:2], weights)
            assert close(
                page_attention(driver, layer, {"prefix": "class"}, head, "to")["map"], expected[0, 2:], weights
            )


def test_a_swins_windows_and_filters_are_the_recorded_ones(opened: Any, picture: Path) -> None:
    driver, model = opened("swin"), models("swin")
    with torch.no_grad(), attngraft.record(model) as recording:
        model(seen(model, picture))
    layers = [
        ("layers.0.blocks.0.attn", "elsa.local_filters"),
        ("layers.0.blocks.1.attn", "weights"),
        ("layers.1.blocks.0.attn", "weights"),
        ("layers.1.blocks.1.attn", "weights"),
        ("layers.1.blocks.1.attn", "bisa.inverse_weights"),
    ]
    for index, (site, name) in enumerate(layers):
        whole = recording.full_attention_map(site, name)[0]
        side = int(whole.shape[-1] ** 0.5)
        for row, column in ((0, 0), (2, 5), (side - 1, side - 2)):
            own = row * side + column
            found = page_attention(driver, index, place(row, column, (side, side)), 0, "to")
            assert close(found["map"], whole[0, own], whole)
            assert close(
                page_attention(driver, index, place(row, column, (side, side)), 0, "from")["map"],
                whole[0, :, own],
                whole,
            )
            assert found["prefix"] == []


def test_bixts_tokens_look_through_its_latents(opened: Any, picture: Path) -> None:
    driver, model = opened("bixt"), models("bixt")
    with torch.no_grad(), attngraft.record(model) as recording:
        model(seen(model, picture))
    site = "blocks.0.cross_attention_latents_token.attn"
    theirs, ours = (recording[site][name][0] for name in ("latents_to_tokens", "tokens_to_latents"))
    through = ours @ theirs
    found = page_attention(driver, 0, place(2, 1, (4, 4)), 3, "to")
    assert close(found["map"], through[3, 9], through)
    assert close(found["latents"], ours[3, 9], ours)
    assert close(page_attention(driver, 0, place(2, 1, (4, 4)), 3, "from")["map"], through[3, :, 9], through)
    assert close(page_attention(driver, 0, {"latent": 7}, 3, "to")["map"], theirs[3, 7], theirs)
    assert close(page_attention(driver, 0, {"latent": 7}, 3, "from")["map"], ours[3, :, 7], ours)
    last = page_attention(driver, 1, place(2, 1, (4, 4)), 0, "to")
    assert not any(last["map"]), "tokens of the last layer attend to nothing"


def test_what_one_does_is_what_one_sees(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    driver = opened("vit", "swin", vit="plain", swin=NASTY)
    titles = [each.text for each in driver.find_elements(By.TAG_NAME, "h2")]
    assert titles == ["plain", NASTY]
    assert driver.title == "a <picture>.png: attention"

    def said() -> list[str]:
        return [each.text for each in driver.find_elements(By.CSS_SELECTOR, ".summary")]

    def state(name: str) -> Any:
        return driver.execute_script(f"return state.{name}")

    picture_ = driver.find_element(By.CSS_SELECTOR, ".picture")
    width = picture_.size["width"]
    corner = (picture_, -width // 2 + 5, -width // 2 + 5)
    ActionChains(driver).move_to_element_with_offset(*corner).perform()
    assert "The patch in row 0, column 0 attends most to" in said()[0]
    assert "The patch in row 0, column 0 attends most to" in said()[1]
    ActionChains(driver).move_to_element_with_offset(picture_, 9, 9).perform()
    assert "row 2, column 2 attends" in said()[0], "whatever one points at"
    ActionChains(driver).move_to_element_with_offset(*corner).click().move_to_element_with_offset(
        picture_, 9, 9
    ).perform()
    assert "row 0, column 0 attends" in said()[0], "a click keeps it"
    ActionChains(driver).move_to_element_with_offset(*corner).click().move_to_element_with_offset(
        picture_, 9, 9
    ).perform()
    assert "row 2, column 2 attends" in said()[0], "another one there lets it go"
    ActionChains(driver).move_to_element_with_offset(*corner).perform()
    picture_.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert "row 2, column 1 attends" in said()[0]
    assert "row 8, column 5 attends" in said()[1], "the same place on a finer map"
    picture_.send_keys("v", "]", ".")
    assert (state("direction"), state("layer"), state("head")) == ("from", 1, 0)
    assert "blocks.1.attn, head 0: The patch in row 2, column 1 gets most attention from" in said()[0]
    picture_.send_keys("[", ",", "v")
    assert (state("direction"), state("layer"), state("head")) == ("to", 0, -1)

    driver.find_element(By.CSS_SELECTOR, "#shade").send_keys("]v")
    assert (state("direction"), state("layer")) == ("to", 0), "keys are the image's alone"

    cell = driver.find_element(By.CSS_SELECTOR, "[aria-label='blocks.1.attn, head 1']")
    cell.click()
    assert (state("layer"), state("head"), cell.get_attribute("aria-pressed")) == (1, 1, "true")
    (button,) = (each for each in driver.find_elements(By.CSS_SELECTOR, ".tokens button") if each.text == "class")
    button.click()
    assert "The class token attends most to" in said()[0]
    assert "not a token of this layer" in said()[1]
    assert button.get_attribute("aria-pressed") == "true"
    driver.find_element(By.CSS_SELECTOR, "[value=from]").click()
    assert "The class token gets most attention from" in said()[0]

    strongest = "const c = document.querySelector('.heat'); return [c.width, c.height]"
    assert driver.execute_script(strongest) == [4, 4]


def test_it_opens_at_the_most_structured_attention(driver: Any, picture: Path, tmp_path: Path) -> None:
    page = explore({"a": models("vit")}, picture, out=tmp_path / "page.html")
    opening = data_of(page)["opening"]
    driver.get(page.as_uri())
    state = driver.execute_script("return state")
    assert {name: state[name] for name in ("layer", "head", "query")} == {
        name: opening[name] for name in ("layer", "head", "query")
    }
    assert driver.find_element("css selector", ".description").text.endswith("parameters, 32 × 32 pixels")
    assert not driver.find_element("css selector", ".predicted").is_displayed()


def test_two_models_stand_side_by_side_layer_by_layer(picture: Path, tmp_path: Path, driver: Any) -> None:
    from selenium.webdriver.common.by import By

    grafted = vit()
    attngraft.graft(grafted, "bisa@first:1")
    page = explore({"host": vit(), "with bisa": grafted}, picture, out=tmp_path / "page.html")
    driver.get(page.as_uri())
    assert driver.execute_script("return titles") == [
        "blocks.0.attn",
        "blocks.0.attn: bisa.inverse_weights",
        "blocks.1.attn",
    ]
    for layer, shown in enumerate(
        [["blocks.0.attn"] * 2, ["blocks.0.attn", "blocks.0.attn: bisa.inverse_weights"], ["blocks.1.attn"] * 2]
    ):
        driver.execute_script("choose({ layer: arguments[0] })", layer)
        said = [each.text.split(",")[0] for each in driver.find_elements(By.CSS_SELECTOR, ".summary")]
        assert said == shown
    tops = "return [...document.querySelectorAll('.picture')].map((each) => each.getBoundingClientRect().top)"
    for width, beside in ((1200, True), (800, True), (360, False)):  # a desk, a tablet, a phone
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 1000}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        host, grafted_ = driver.execute_script(tops)
        assert (host == grafted_) == beside
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert driver.get_log("browser") == []


def test_tokens_of_one_name_belong_together(picture: Path, tmp_path: Path, driver: Any) -> None:
    from selenium.webdriver.common.by import By

    models_ = {"both": vit(reg_tokens=1), "register": vit(reg_tokens=1, class_token=False, global_pool="avg")}
    driver.get(explore(models_, picture, out=tmp_path / "page.html").as_uri())
    (button,) = (each for each in driver.find_elements(By.CSS_SELECTOR, ".tokens button") if each.text == "class")
    button.click()
    said = [each.text for each in driver.find_elements(By.CSS_SELECTOR, ".summary")]
    assert "The class token attends most to" in said[0]
    assert "not a token of this layer" in said[1]
    pressed = driver.find_elements(By.CSS_SELECTOR, ".tokens [aria-pressed=true]")
    assert [each.text for each in pressed] == ["class"]


@pytest.mark.parametrize(
    ("share", "text"), [(1, "100%"), (0.997, "100%"), (0.5, "50%"), (0.0123, "1.2%"), (1e-6, "0.0001%"), (0, "0%")]
)
def test_shares_are_written_plainly(driver: Any, picture: Path, tmp_path: Path, share: float, text: str) -> None:
    driver.get(explore({"a": vit()}, picture, out=tmp_path / "page.html").as_uri())
    assert driver.execute_script("return percent(arguments[0])", share) == text


def test_light_dark_and_a_phone(opened: Any) -> None:
    driver = opened("swin")
    background = "return getComputedStyle(document.documentElement).backgroundColor"
    for scheme, expected in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 23, 28)")):
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        assert driver.execute_script(background) == expected
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 360
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


# --- masks ------------------------------------------------------------------------------------------------------------


def test_masks_are_shown_over_the_image(tmp_path: Path, driver: Any) -> None:
    data = write_drawings(tmp_path / "data", train=3, val=2)
    record = read_run(make_run(tmp_path / "run", task=section(tmp_path / "data")))
    known = replace(predicting_masks(vit(dynamic_img_size=True, num_classes=0), "dense"), record=record)
    page, image = tmp_path / "page.html", data / "images" / "val" / "3.png"
    explore_handles([known, model_handle("classes", vit())], image, out=page)
    driver.get(page.as_uri())
    options = [each.get_attribute("value") for each in driver.find_elements("css selector", "#picture option")]
    assert options == ["", "predicted mask", "true mask"]
    assert driver.find_element("css selector", "#shown").is_displayed()
    pictures = 'return [...document.querySelectorAll(".picture img")].map((each) => each.src)'
    plain = driver.execute_script(pictures)
    driver.execute_script("choose({ picture: 'true mask' })")
    masked = driver.execute_script(pictures)
    assert masked[0] != plain[0] and masked[1] == plain[1], "a classifier has no mask"
    legends = driver.find_elements("css selector", ".legend")
    assert legends[0].is_displayed() and not legends[1].is_displayed()
    said = driver.find_element("css selector", ".predicted").text
    assert said.startswith("image resized and cropped to 32 × 64 pixels, the padded size of training crops; ")
    assert said.endswith("% of its labeled pixels predicted correctly")
    model = data_of(page)["models"][0]
    assert all(name in CLASSES for name in (each["name"] for each in model["legend"]))
    shares = [float(each["shares"].split("true ")[1].rstrip("%")) for each in model["legend"]]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert driver.get_log("browser") == []


def test_the_true_mask_is_cropped_like_the_image(tmp_path: Path) -> None:
    """And it is unknown for an image that is not among the data."""
    data = write_drawings(tmp_path / "data", train=3, val=2)
    record = read_run(make_run(tmp_path / "run", task=section(tmp_path / "data")))
    handle = replace(predicting_masks(vit(dynamic_img_size=True, num_classes=0), "dense"), record=record)
    label = np.array(Image.open(data / "masks" / "val" / "3.png"))
    rows, scale = len(label), 64 / label.shape[1]
    top = (round(rows * scale) - 32) // 2
    row, column = np.mgrid[top : top + 32, 0:64]
    expected = label[np.minimum((row + 0.5) / scale, rows - 1).astype(int), ((column + 0.5) / scale).astype(int)]
    found = handle.preparation.label_map(label).numpy()
    assert (found == expected).mean() > 0.95
    page, image = tmp_path / "page.html", data / "images" / "val" / "3.png"
    explore_handles([handle], image, out=page)
    model = data_of(page)["models"][0]
    shown = np.array(_picture(model["masks"]["true mask"])).astype(int)
    plain = np.array(_picture(model["image"])).astype(int)
    assert (abs(shown - plain).max(2) == 0).mean() == pytest.approx((found == 255).mean(), abs=0.02)
    image.rename(tmp_path / "3.png")
    explore_handles([handle], tmp_path / "3.png", out=page)
    model = data_of(page)["models"][0]
    assert list(model["masks"]) == ["predicted mask"]
    assert model["predicted"] == "image resized and cropped to 32 × 64 pixels, the padded size of training crops"


def _picture(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
