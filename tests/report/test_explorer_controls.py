"""The explorer's charts and controls: that they draw and do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attngraft
from attngraft.report.explorer import explore
from tests.analysis.test_explorer import vit
from tests.report.explored import pixels

#: of the charts' drawing: its ground line and the height of its largest number
GROUND, TOP = 104, 22


def value(y: float, most: float) -> float:
    return most * (GROUND - y) / (GROUND - TOP)


def points(path: str) -> list[tuple[float, float]]:
    """Of a path of lines."""
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)]


def chart(driver: Any, name: str, view: int = 0) -> Any:
    model = driver.find_elements("css selector", ".model")[view]
    (found,) = model.find_elements("css selector", f".charts svg[aria-label^='{name}']")
    return found


@pytest.mark.parametrize("kind", ["vit", "swin", "bixt", "elsa"])
def test_the_charts_draw_the_pages_numbers(opened: Any, kind: str) -> None:
    driver = opened(kind)
    layers = driver.execute_script("return data.models[0].layers")
    assert any(layer["entropy"] for layer in layers)
    for name in ("entropy", "distance"):
        if not any(layer[name] for layer in layers):
            assert not driver.find_elements("css selector", f".charts svg[aria-label^='{name}']")
            continue
        svg = chart(driver, name)
        ceilings = [layer["ceiling"] for layer in layers if layer["entropy"]] if name == "entropy" else []
        most = max([number for layer in layers for number in layer[name]] + ceilings)
        step = 0.006 * most  # numbers stand to a tenth of a pixel
        drawn = [
            (float(each.get_attribute("cx")), value(float(each.get_attribute("cy")), most))
            for each in svg.find_elements("css selector", "circle")
        ]
        expected = [number for layer in layers for number in layer[name]]
        assert [number for _, number in drawn] == pytest.approx(expected, abs=step)
        places = [x for x, _ in drawn]
        heads = [len(layer[name]) for layer in layers]
        assert np.unique(places).tolist() == sorted(set(places)) and places == sorted(places)
        assert [places.count(x) for x in dict.fromkeys(places)] == [count for count in heads if count]
        mean = points(svg.find_element("css selector", ".mean").get_attribute("d"))
        assert [x for x, _ in mean] == list(dict.fromkeys(places))
        means = [float(np.mean(layer[name])) for layer in layers if layer[name]]
        assert [value(y, most) for _, y in mean] == pytest.approx(means, abs=step)
        for layer in layers:
            if layer[name]:
                number = float(
                    re.findall(re.escape(layer["site"]) + r" ([\d.e-]+)(?:;|$)", svg.get_attribute("aria-label"))[0]
                )
                assert number == pytest.approx(np.mean(layer[name]), rel=0.006), "what is read aloud is what is drawn"
        if ceilings:
            ceiling = points(svg.find_element("css selector", ".ceiling").get_attribute("d"))
            assert [value(y, most) for _, y in ceiling] == pytest.approx(ceilings, abs=step)
        scale = [each.text for each in svg.find_elements("css selector", "text[text-anchor=end]")]
        assert float(scale[0]) == pytest.approx(most, rel=0.06) and scale[1] == "0"


def test_charts_of_two_models_have_one_scale_and_a_line_over_layers_without_numbers(
    driver: Any, picture: Path, tmp_path: Path
) -> None:
    grafted = vit(depth=3)
    attngraft.graft(grafted, "bisa")
    driver.get(explore({"host": vit(depth=3), "bisa": grafted}, picture, out=tmp_path / "page.html").as_uri())
    for name in ("entropy", "distance"):
        host, bisa = (chart(driver, name, view) for view in (0, 1))
        labels = [svg.find_element("css selector", "text[text-anchor=end]").text for svg in (host, bisa)]
        assert labels[0] == labels[1]
        line = points(bisa.find_element("css selector", ".mean").get_attribute("d"))
        assert len(line) == 3, "inverse weights have no entropy; the layers on both sides are joined"
        steps = np.diff([x for x, _ in line])
        assert steps[0] == pytest.approx(steps[1], abs=0.2)
    click(driver, chart(driver, "entropy"), 1, layers=3)
    said = [each.text.split(",")[0] for each in driver.find_elements("css selector", ".summary")]
    assert said == ["blocks.1.attn"] * 2, "the host's second layer is bisa's third"
    assert driver.get_log("browser") == []


def click(driver: Any, svg: Any, index: int, layers: int) -> float:
    """On a layer of a chart; where it stands in the drawing."""
    from selenium.webdriver.common.action_chains import ActionChains

    x = 30 + index * (260 - 30 - 8) / (layers - 1)
    box, scale = svg.rect, svg.rect["width"] / 260
    ActionChains(driver).move_to_element_with_offset(svg, round(x * scale - box["width"] / 2), 5).click().perform()
    return x


def test_a_click_in_a_chart_chooses_the_layer(opened: Any) -> None:
    driver = opened("swin", "vit")  # of five layers, and of two
    for view, name in ((0, "entropy"), (0, "distance"), (1, "entropy")):
        svg = chart(driver, name, view)
        sites = driver.execute_script("return views[arguments[0]].model.layers.map((layer) => layer.site)", view)
        for index, site in enumerate(sites):
            x = click(driver, svg, index, len(sites))
            assert driver.find_elements("css selector", ".summary")[view].text.startswith(f"{site}, ")
            mark = svg.find_element("css selector", ".now")
            assert float(mark.get_attribute("x1")) == float(mark.get_attribute("x2")) == pytest.approx(x)


def test_the_sliders_and_selectors_do_what_they_say(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    driver = opened("swin")

    def said() -> str:
        found: str = driver.find_element("css selector", ".summary").text
        return found

    def opaque() -> list[int]:
        """How opaque the map is, at its least and at its most."""
        found = pixels(driver, driver.find_element("css selector", ".heat"))[..., 3]
        return [int(found.min()), int(found.max())]

    layers = driver.execute_script("return data.models[0].layers")
    slider, name = (driver.find_element("css selector", f"#{each}") for each in ("layer", "layer-name"))
    slider.send_keys(Keys.HOME)
    for index, layer in enumerate(layers):
        assert slider.get_property("value") == str(index)
        assert name.text.replace("\u200b", "") == layer["site"]
        assert said().startswith(f"{layer['site']}, mean of heads: ")
        heads = Select(driver.find_element("css selector", "#head"))
        assert [each.text for each in heads.options] == ["mean of all", *map(str, range(layer["heads"]))]
        size = driver.execute_script("const c = document.querySelector('.heat'); return [c.height, c.width]")
        assert size == [layer["rows"], layer["columns"]]
        slider.send_keys(Keys.ARROW_RIGHT)
    assert slider.get_property("value") == str(len(layers) - 1), "there is no layer behind the last"
    Select(driver.find_element("css selector", "#head")).select_by_visible_text("1")
    assert said().startswith(f"{layers[-1]['site']}, head 1: ")
    slider.send_keys(Keys.HOME)
    assert said().startswith(f"{layers[0]['site']}, mean of heads: "), "it has one head alone"

    shade = driver.find_element("css selector", "#shade")
    shade.send_keys(Keys.HOME)
    assert opaque() == [0, 0], "the bare image"
    shade.send_keys(Keys.END)
    assert opaque() == [round(255 * 0.35), 255]
    shade.send_keys(Keys.PAGE_DOWN)
    assert opaque()[1] == round(255 * int(shade.get_property("value")) / 100) < 255

    radios = {each.get_attribute("value"): each for each in driver.find_elements("css selector", "[name=direction]")}
    radios["to"].send_keys(Keys.ARROW_RIGHT)
    assert radios["from"].is_selected()
    assert "gets most attention from" in said()
    radios["from"].send_keys(Keys.ARROW_LEFT)
    assert "attends most to" in said()
