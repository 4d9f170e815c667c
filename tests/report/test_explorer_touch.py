"""The explorer's page under a finger, on a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

WIDTH, HEIGHT = 360, 740


@pytest.fixture
def phone(driver: Any) -> Iterator[Any]:
    screen = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 2, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 1})
    yield driver
    driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


class Finger:
    """Of one hand, on an element, at places in parts of its sides."""

    def __init__(self, driver: Any, selector: str) -> None:
        self.driver, self.selector = driver, selector

    def touch(self, kind: str, *places: tuple[float, float]) -> None:
        if kind == "touchStart":  # and stays there, wherever the page scrolls
            script = """const box = document.querySelector(arguments[0]).getBoundingClientRect();
                return [box.x, box.y, box.width, box.height]"""
            self.box = self.driver.execute_script(script, self.selector)
        left, top, width, height = self.box
        points = [{"x": left + across * width, "y": top + down * height} for down, across in places]
        assert all(0 <= each["x"] < WIDTH and 0 <= each["y"] < HEIGHT for each in points), "not on the screen"
        self.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def tap(self, down: float, across: float) -> None:
        self.touch("touchStart", (down, across))
        self.touch("touchEnd")


def soon(driver: Any, happens: Callable[[], bool], what: str) -> None:
    """A browser makes clicks, moves and scrolling of touches when it draws."""
    from selenium.common.exceptions import TimeoutException
    from selenium.webdriver.support.ui import WebDriverWait

    try:
        WebDriverWait(driver, 10, poll_frequency=0.05).until(lambda _: happens())
    except TimeoutException:
        pytest.fail(what)


def says(driver: Any, text: str) -> None:
    soon(driver, lambda: text in driver.find_element("css selector", ".summary").text, f"it never says {text!r}")


@pytest.mark.parametrize("kind", ["vit", "swin", "bixt", "elsa"])
def test_a_tap_chooses_the_patch_under_the_finger(phone: Any, opened: Any, kind: str) -> None:
    driver = opened(kind)
    driver.execute_script("document.querySelector('.picture').scrollIntoView({ block: 'center' })")
    finger = Finger(driver, ".picture")
    rows, columns = driver.execute_script("const l = views[0].layer(); return [l.rows, l.columns]")
    for row, column in ((0, 0), (rows - 1, columns - 1), (1, columns - 2)):
        finger.tap((row + 0.5) / rows, (column + 0.5) / columns)
        says(driver, f"The patch in row {row}, column {column} ")
        assert driver.execute_script("return state.pinned")
    box = driver.execute_script("""const of = (s) => document.querySelector(s).getBoundingClientRect();
        const c = of(".chosen"), p = of(".picture");
        return [(c.top + c.bottom) / 2 - p.top, (c.left + c.right) / 2 - p.left].map((each) => each / p.width)""")
    assert box == pytest.approx([1.5 / rows, (columns - 1.5) / columns], abs=0.01), "its frame stands there"
    finger.tap(1.5 / rows, (columns - 1.5) / columns)
    assert not driver.execute_script("return state.pinned"), "another tap there lets it go"


def test_the_patch_follows_a_finger_across_and_the_page_one_up(phone: Any, opened: Any) -> None:
    driver = opened("vit")
    driver.execute_script("document.querySelector('.picture').scrollIntoView({ block: 'center' })")
    finger = Finger(driver, ".picture")
    finger.touch("touchStart", (0.4, 0.1))
    for across in (0.2, 0.4, 0.6, 0.9):
        finger.touch("touchMove", (0.4, across))
    finger.touch("touchEnd")
    says(driver, "The patch in row 1, column 3 ")
    before = driver.execute_script("return scrollY")
    finger.touch("touchStart", (0.8, 0.5))
    for down in (0.7, 0.6, 0.5, 0.4, 0.3):
        finger.touch("touchMove", (down, 0.5))
    finger.touch("touchEnd")
    soon(
        driver, lambda: driver.execute_script("return scrollY") > before + 50, "whoever scrolls is caught on the image"
    )


def test_a_tap_chooses_a_head_and_a_layer(phone: Any, opened: Any) -> None:
    driver = opened("vit")
    cell = "[aria-label='blocks.1.attn, head 0']"
    driver.execute_script("document.querySelector(arguments[0]).scrollIntoView({ block: 'center' })", cell)
    Finger(driver, cell).tap(0.5, 0.5)
    says(driver, "blocks.1.attn, head 0: ")
    driver.execute_script("document.querySelector('.charts svg').scrollIntoView({ block: 'center' })")
    Finger(driver, ".charts svg").tap(0.5, 0.2)
    says(driver, "blocks.0.attn, head 0: ")
