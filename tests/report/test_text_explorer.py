"""The page of attention between tokens: that it holds what was recorded, is safe, and works in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import attngraft
import attngraft.models  # registers the captioner
from attngraft.cli import main
from attngraft.errors import RecordError, UsageError
from attngraft.recording.record import record
from attngraft.report.text_explorer import explore_text
from attngraft.targets.clouds import open_cloud_handle
from attngraft.targets.texts import TextHandle, open_text_handle
from attngraft.tasks.codec import TextInput
from attngraft.training.loop import train
from tests.contract.tester import randomize
from tests.report.explored import pixels
from tests.tasks.text import toys

transformers = pytest.importorskip("transformers")

NASTY = "</script><script>document.title = 'taken'</script><b>&amp;"
SOURCE, TARGET = (NASTY, "two", "three", "</s>"), ("eins", "zwei", "</s>")


def marian() -> nn.Module:
    torch.manual_seed(0)
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SIZES.items()}
    config = transformers.MarianConfig(
        vocab_size=20, d_model=16, pad_token_id=0, eos_token_id=3, decoder_start_token_id=2, **sizes
    )
    return transformers.MarianMTModel(config).eval()


SIZES = {"layers": 2, "attention_heads": 2, "ffn_dim": 16}
INPUTS = {"input_ids": torch.tensor([[5, 6, 7, 3]]), "decoder_input_ids": torch.tensor([[2, 8, 9]])}


def handle(name: str = "a", model: nn.Module | None = None, source: tuple[str, ...] = SOURCE) -> TextHandle:
    tokens = TextInput(kwargs=INPUTS, source=source, inputs=("<s>", *TARGET[:-1]), target=TARGET)
    return TextHandle(name=name, model=model or marian(), encode=lambda text, target: tokens, description="a model")


def data_of(page: Path) -> dict[str, Any]:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.S)
    found: dict[str, Any] = json.loads(data)
    return found


def test_the_page_holds_what_was_recorded(tmp_path: Path) -> None:
    model = marian()
    attngraft.graft(model, "horizontal@decoder + bisa@encoder")
    randomize(model, only_grafts=True)
    page = explore_text([handle(NASTY, model)], NASTY, out=tmp_path / "page.html")
    assert NASTY not in page.read_text("utf-8")
    (found,) = data_of(page)["models"]
    assert (found["name"], found["source"], found["target"]) == (NASTY, list(SOURCE), list(TARGET))
    layers = {layer["site"]: layer for layer in found["layers"]}
    with torch.no_grad(), record(model) as recording:
        model(**INPUTS)
    assert not found["skipped"]
    sides = {name: (layer["rows"], layer["columns"], layer["weights"]["shape"]) for name, layer in layers.items()}
    assert sides["encoder.layers.0.self_attn"] == ("source", "source", [2, 4, 4])
    assert sides["encoder.layers.0.self_attn: bisa.inverse_weights"] == ("source", "source", [2, 4, 4])
    assert sides["decoder.layers.1.self_attn"] == ("target", "inputs", [2, 3, 3])
    assert sides["decoder.layers.1.encoder_attn"] == ("target", "source", [2, 3, 4])
    weights: Tensor = recording["decoder.layers.1.encoder_attn"]["weights"]
    assert layers["decoder.layers.1.encoder_attn"]["weights"]["largest"] == pytest.approx(float(weights.max()))


def test_what_makes_no_page(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    with pytest.raises(UsageError, match="one or two models, but 3 were given"):
        explore_text([handle(), handle(), handle()], "a", out=out)
    with pytest.raises(RecordError, match=r"shape \(1, 2, 4, 4\) of its map does not fit the 2 x 2 tokens"):
        explore_text([handle(source=("one", "two"))], "a", out=out, sites="encoder")
    assert not out.exists()


def test_a_browser_shows_the_rows(driver: Any, tmp_path: Path) -> None:
    page = explore_text([handle("a"), handle("b")], "one two three", out=tmp_path / "page.html")
    driver.get(page.as_uri())
    assert driver.execute_script("return titles[state.layer]") == "decoder.layers.1.encoder_attn"
    script = "choose({ row: 1, head: 0 }); return views[0].map(views[0].layer(), 0)"
    found = torch.tensor(driver.execute_script(script))
    model = marian()
    with torch.no_grad(), record(model, sites="decoder.layers.1.encoder_attn") as recording:
        model(**INPUTS)
    expected = recording["decoder.layers.1.encoder_attn"]["weights"][0, 0].flatten()
    assert (found - expected).abs().max() < 0.01 * expected.max()
    texts = driver.execute_script("return [...document.querySelectorAll('.summary')].map((each) => each.textContent)")
    assert all("the prediction of “zwei” attends most to" in text for text in texts)
    assert driver.title == "one two three: attention"
    assert driver.get_log("browser") == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    data = toys.table(folder / "reviews.csv", toys.sentences(40))
    train(toys.recipe(data, toys.host(folder / "bert")), folder / "run")
    return folder / "run"


def test_a_classifier_of_texts(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    with pytest.raises(SystemExit) as stop:
        main(["explore", "--model", str(run), "--text", "The film was warm.", "--out", str(out)])
    assert not stop.value.code
    (found,) = data_of(out)["models"]
    assert found["source"][0] == "[CLS]"
    assert not found["target"]
    assert "bert" in found["description"]
    with pytest.raises(UsageError, match="takes text, not point clouds; use --text TEXT"):
        open_cloud_handle(str(run))
    with pytest.raises(UsageError, match="has no decoder; remove it"):
        open_text_handle(str(run)).encode("The film", "Der Film")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --image FILE"),
        (["--image", "a.png", "--text", "a"], "give either --image FILE"),
        (["--image", "a.png", "--target", "a"], "--target belongs to --text"),
        (["--text", "a", "--pretrained"], "--text takes runs and exported folders"),
        (["--text", "a"], "nowhere: no such folder"),
    ],
)
def test_wrong_calls(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["explore", "--model", "nowhere", "--out", str(tmp_path / "page.html"), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def captioner(name: str, grid: tuple[int, int]) -> TextHandle:
    """A captioner of two levels with memory slots, on 6 positions of a picture, or on regions if there is no grid."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 9, "feature_dim": 5, "dim": 16, "depth": 2, "heads": 2, "hidden": 16, "slots": 3}
    model = timm.create_model("m2_transformer", **sizes)
    randomize(model)
    source = tuple(f"place {number}" for number in range(6))
    features = torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(1))
    tokens = TextInput(
        kwargs={"features": features, "ids": torch.tensor([[2, 5, 6]])},
        source=source,
        inputs=("<bos>", "a", NASTY),
        target=("a", NASTY, "<eos>"),
        keys=(*source, "slot 1", "slot 2", "slot 3"),
        picture=Image.new("RGB", (1800, 1200), "teal") if all(grid) else None,
        grid=grid,
    )
    return TextHandle(name=name, model=model.eval(), encode=lambda text, target: tokens, description="a captioner")


def test_a_browser_lays_attention_over_the_image(driver: Any, tmp_path: Path) -> None:
    page = explore_text([captioner("a", (2, 3)), captioner("b", (0, 0))], "dog.png", out=tmp_path / "page.html")
    driver.get(page.as_uri())
    assert driver.execute_script("return titles[state.layer]") == "decoder.1.cross_attn: level 2"
    driver.execute_script("choose({ row: 1, head: 0 })")
    first, second = driver.find_elements("css selector", ".model")
    picture = first.find_element("css selector", ".picture")
    size = driver.execute_script(
        "const one = arguments[0].querySelector('img'); return [one.naturalWidth, one.naturalHeight]", picture
    )
    assert size == [896, 597]
    assert not second.find_element("css selector", ".picture").is_displayed()
    assert second.find_element("css selector", ".source").is_displayed()
    assert not first.find_element("css selector", ".source").is_displayed()
    handle = captioner("a", (2, 3))
    with torch.no_grad(), record(handle.model, sites="decoder.1.cross_attn") as recording:
        handle.model(**handle.encode("", None).kwargs)
    row = recording["decoder.1.cross_attn"]["weights"][1, 0, 1]
    heat = pixels(driver, picture.find_element("css selector", ".heat"))
    assert heat.shape == (2, 3, 4)
    order = heat[..., 3].flatten()  # the opacity grows with the attention
    assert order.argmax() == int(row.argmax()) and (np.diff(order[row.argsort().numpy()]) >= 0).all()
    box, heat_map = (picture.find_element("css selector", each) for each in (".chosen", ".heat"))
    assert heat_map.is_displayed() and not box.is_displayed()
    driver.execute_script("choose({ layer: titles.indexOf('encoder.0.self_attn'), row: 4 })")
    assert heat_map.is_displayed() and box.get_attribute("style").startswith("top: 50%; left: 33.3333%;")
    driver.execute_script("choose({ layer: titles.indexOf('decoder.0.self_attn') })")
    assert not heat_map.is_displayed() and not box.is_displayed()
    assert driver.title == "dog.png: attention"
    assert driver.get_log("browser") == []
