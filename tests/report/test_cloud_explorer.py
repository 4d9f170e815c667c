"""The page of a point cloud: that it holds what was recorded, is safe, and works in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

from attngraft.errors import DataError, RecordError, UsageError
from attngraft.recording.record import record
from attngraft.report import cloud_explorer
from attngraft.report.cloud_explorer import explore_cloud
from attngraft.targets.clouds import CloudHandle
from attngraft.tasks.points.clouds import normalize
from attngraft.tasks.points.codec import PointsCodec
from attngraft.tasks.points.part_codec import PartsCodec
from attngraft.tasks.points.split import Sampling
from tests.contract.tester import randomize
from tests.report.test_text_explorer import NASTY, data_of
from tests.tasks.points.runs import write_cloud
from tests.tasks.points.shapes import CATEGORIES, PARTS

SAMPLING = Sampling(points=48, sample="first", normals=False, normalize=True)
SIZES = {"depth": 2, "embed_dim": 24, "num_heads": 3, "num_latents": 8, "in_chans": 3}
CROSS = "blocks.0.cross_attention_latents_token.attn"


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"in_chans": 3} if name == "pointnet" else dict(SIZES)
    if name.endswith("_hier"):
        sizes |= {"reducers": (2, 2), "neighbors": 8, "decoder": (16, 16)}
    model: nn.Module = timm.create_model(name, num_classes=7 if "parts" in name else 3, **sizes)
    if name != "pointnet":
        randomize(model)
    return model.eval()


def handle(name: str = "bixt_points_naive", *, called: str | None = None, votes: int = 1) -> CloudHandle:
    codec: Any = PointsCodec(SAMPLING, classes=CATEGORIES, votes=votes, activation="softmax")
    if "parts" in name:
        codec = PartsCodec(SAMPLING, classes=CATEGORIES, parts=PARTS, votes=votes)
    return CloudHandle(name=called or name, model=network(name), codec=codec, description="a model")


@pytest.fixture
def cloud(tmp_path: Path) -> str:
    return str(write_cloud(tmp_path / "mug.npy"))


def test_the_page_holds_what_was_recorded(cloud: str, tmp_path: Path) -> None:
    given = handle(called=NASTY)
    page = explore_cloud([given], cloud, out=tmp_path / "page.html", title=NASTY)
    assert NASTY not in page.read_text("utf-8")
    (found,) = data_of(page)["models"]
    assert (found["name"], found["description"], found["missing"], found["parts"]) == (NASTY, "a model", "", [])
    (points,) = given.inputs(cloud)
    assert np.abs(np.reshape(found["points"], (48, 3)) - normalize(points[0].numpy())).max() < 1e-4
    with torch.no_grad(), record(given.model) as recording:
        shares = given.model(points).softmax(-1)[0]
    best = CATEGORIES[int(shares.argmax())]
    assert found["predicted"].startswith(f"predicted {best} ({float(shares.max()):.0%}); then ")
    first, last = found["layers"]
    assert (first["site"], first["points"]) == (CROSS, None)
    assert {way: each["shape"] for way, each in first["maps"].items()} == {
        "latents_to_tokens": [3, 8, 48],
        "tokens_to_latents": [3, 48, 8],
    }
    assert list(last["maps"]) == ["latents_to_tokens"]
    largest = float(recording[CROSS]["latents_to_tokens"].max())
    assert first["maps"]["latents_to_tokens"]["largest"] == pytest.approx(largest)


def test_predicted_parts_and_the_points_of_a_hierarchy(cloud: str, tmp_path: Path) -> None:
    handles = [handle("bixt_parts_naive"), handle("bixt_parts_hier")]
    found = data_of(explore_cloud(handles, f"mug={cloud}", out=tmp_path / "page.html"))
    for given, model in zip(handles, found["models"], strict=True):
        assert model["parts"] == given.predict(given.inputs(f"mug={cloud}"))
        assert f"{max(model['parts'], key=model['parts'].count)} (" in model["predicted"]
    naive, hierarchy = found["models"]
    assert {layer["points"] for layer in naive["layers"]} == {None}
    assert [len(layer["points"]) for layer in hierarchy["layers"]] == [24, 12]
    both = naive["parts"] + hierarchy["parts"]
    assert found["colored"] == sorted(set(both), key=lambda part: (-both.count(part), both.index(part)))[:6]
    with pytest.raises(DataError, match="give CATEGORY=FILE"):
        explore_cloud(handles, cloud, out=tmp_path / "page.html")


def test_votes_change_the_prediction_alone(cloud: str, tmp_path: Path) -> None:
    one, several = (
        data_of(explore_cloud([handle(votes=votes)], cloud, out=tmp_path / "page.html"))["models"][0]
        for votes in (1, 8)
    )
    assert one["layers"] == several["layers"]
    given = handle(votes=8)
    shares = given.predict(given.inputs(cloud))
    assert isinstance(shares, dict)
    assert f"({max(shares.values()):.0%})" in several["predicted"]


def test_what_makes_no_page(cloud: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "page.html"
    with pytest.raises(UsageError, match="one or two models, but 3 were given"):
        explore_cloud([handle()] * 3, cloud, out=out)
    with pytest.raises(DataError, match="no such file"):
        explore_cloud([handle()], "nowhere.npy", out=out)
    with pytest.raises(RecordError, match="no chosen site has attention between points and latents"):
        explore_cloud([handle()], cloud, out=out, sites="blocks.*.self_attention_latents")
    monkeypatch.setattr(cloud_explorer, "MOST_BYTES", 1000)
    with pytest.raises(UsageError, match=r"choose fewer sites, such as sites='blocks\.0-3'"):
        explore_cloud([handle()], cloud, out=out)
    assert not out.exists()


# --- in a browser ---------------------------------------------------------------------------------------------------------


def texts(driver: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
    found: list[str] = driver.execute_script(script, selector)
    return found


@pytest.mark.parametrize("head", [-1, 1])
@pytest.mark.parametrize("latent", [-1, 5])
def test_a_browser_colors_by_attention(driver: Any, cloud: str, tmp_path: Path, head: int, latent: int) -> None:
    given = handle()
    driver.get(explore_cloud([given, handle("pointnet")], cloud, out=tmp_path / "page.html").as_uri())
    assert driver.execute_script("return titles[state.layer]") == CROSS.replace("0", "1")
    with torch.no_grad(), record(given.model, sites=CROSS) as recording:
        given.model(*given.inputs(cloud))
    for way, latents in {"latents_to_tokens": 1, "tokens_to_latents": 2}.items():
        script = "choose({ layer: 0, head: arguments[0], latent: arguments[1], way: arguments[2] });"
        found = driver.execute_script(f"{script} return views[0].shares(views[0].layer())", head, latent, way)
        maps = recording[CROSS][way][0]
        expected = maps.mean(0) if head < 0 else maps[head]
        if latent >= 0:
            expected = expected.select(latents - 1, latent)
        else:
            expected = expected.mean(0) if latents == 1 else expected.amax(1)
        assert (torch.tensor(found) - expected).abs().max() < 0.01 * maps.max()
        sizes = driver.execute_script("return views[0].sizes")
        assert sizes == pytest.approx((torch.tensor(found) / max(found)).tolist(), abs=1e-6)
    first, second = texts(driver, ".summary")
    assert f"{CROSS}, {'mean of heads' if head < 0 else 'head 1'}" in first
    assert second == "No attention to show: PointNet has no attention that can be recorded."
    assert driver.get_log("browser") == []


def test_both_clouds_rotate_together(driver: Any, cloud: str, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains, Keys

    page = explore_cloud([handle(), handle(called="b")], cloud, out=tmp_path / "page.html")
    driver.get(page.as_uri())
    drawn = "return [...document.querySelectorAll('canvas')].map((each) => each.toDataURL())"
    start = driver.execute_script(drawn)
    assert start[0] == start[1]
    seen = [start[0]]
    first, second = driver.find_elements("css selector", ".cloud")
    driver.execute_script("arguments[0].scrollIntoView()", first)
    ActionChains(driver).drag_and_drop_by_offset(first, 60, 20).perform()
    for act in (
        lambda: None,
        lambda: second.send_keys(Keys.ARROW_LEFT),
        lambda: second.send_keys("+"),
        lambda: driver.execute_script("arguments[0].dispatchEvent(new WheelEvent('wheel', { deltaY: -300 }))", first),
        lambda: second.send_keys("n"),
        lambda: second.send_keys("v["),
    ):
        act()
        left, right = driver.execute_script(drawn)
        assert left == right
        assert left not in seen
        seen.append(left)
    turn = torch.tensor(driver.execute_script("return state.turn"))
    assert torch.allclose(turn @ turn.T, torch.eye(3), atol=1e-6)  # still a rotation
    state = driver.execute_script("return state")
    assert (state["layer"], state["latent"], state["way"]) == (0, 0, "tokens_to_latents")
    second.send_keys("0")
    assert driver.execute_script("return [state.zoom, state.turn === START]") == [1, True]
    assert driver.get_log("browser") == []


def test_a_browser_colors_parts_and_anchors(driver: Any, cloud: str, tmp_path: Path) -> None:
    handles = [handle("bixt_parts_naive"), handle("bixt_parts_hier")]
    page = explore_cloud(handles, f"mug={cloud}", out=tmp_path / "page.html")
    driver.get(page.as_uri())
    places = data_of(page)["models"][1]["layers"][0]["points"]
    driver.execute_script("choose({ layer: 0, way: 'latents_to_tokens' })")
    colors = driver.execute_script("return views[1].colors")
    assert {i for i, each in enumerate(colors) if each is not None} == set(places)
    assert "Only the layer’s 24 of 48 points are colored." in texts(driver, ".summary")[1]
    driver.execute_script("choose({ color: 'parts' })")
    colors = driver.execute_script("return views[0].colors")
    parts = data_of(page)["models"][0]["parts"]
    assert len(set(zip(colors, parts, strict=True))) == len(set(parts)) == len(set(colors))
    assert sorted(texts(driver, ".model:first-child .legend li")) == sorted(f"part {part}" for part in set(parts))
    assert driver.get_log("browser") == []


def test_more_parts_than_colors_are_muted(driver: Any, cloud: str, tmp_path: Path) -> None:
    page = explore_cloud([handle("bixt_parts_naive")], f"mug={cloud}", out=tmp_path / "page.html")
    driver.get(page.as_uri())
    script = "data.models[0].parts.forEach((_, i, parts) => { parts[i] = i % 7; }); data.colored = [0, 1, 2, 3, 4, 5];"
    driver.execute_script(f"{script} choose({{ color: 'parts' }})")
    assert texts(driver, ".legend li") == [*(f"part {part}" for part in range(6)), "other parts"]
    assert driver.execute_script("return new Set(views[0].colors).size") == 7
