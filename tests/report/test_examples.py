from __future__ import annotations

from dataclasses import replace

from attngraft.report.examples import MOST, MOST_CHARACTERS, example_view
from attngraft.report.page import report_html
from attngraft.results.examples import ExampleGroup, ExampleImage, ExampleImages, ExamplePrediction
from tests.report import studies
from tests.report.test_page import Page

RIGHT = ExamplePrediction(predicted="cat", confidence=0.91, right=3)
MIXED = ExamplePrediction(predicted="dog", confidence=0.6, right=1)


def image(name: str = "val/cat/1.png", jpeg: str = "/9j/AAAA") -> ExampleImage:
    return ExampleImage(name=name, label="cat", baseline=MIXED, variant=RIGHT, jpeg=jpeg)


def examples(*images: ExampleImage, variant: str = "cb_s", title: str = "Right with cb_s") -> ExampleImages:
    return ExampleImages(variant=variant, seeds=3, groups=[ExampleGroup(title=title, images=list(images))])


def test_the_page_has_thumbnails_with_predictions():
    html = report_html(studies.usual(), (), examples(image()))
    page = Page(html)
    assert page.tags.count("img") == 1
    assert "data:image/jpeg;base64,/9j/AAAA" in page.references
    assert "img-src data:" in html and "examples" in page.ids
    assert "cat ~ none: dog, 60% 1 of 3 right ✓ cb_s: cat, 91% 3 of 3 right" in page.text


def test_without_images_nothing_is_said_of_them():
    html = report_html(studies.usual())
    assert "Example images" not in html and "img-src" not in html and "#examples" not in html


def test_images_of_a_variant_that_is_gone_are_left_out():
    assert example_view(studies.usual(), examples(image(), variant="another")) is None


def test_the_size_is_bounded():
    many = example_view(studies.usual(), examples(*(image(str(i)) for i in range(3 * MOST))))
    assert many is not None and sum(len(images) for _, images in many.groups) == MOST
    assert example_view(studies.usual(), examples(image(jpeg="/9j/" + "A" * MOST_CHARACTERS))) is None


def test_user_strings_are_inert():
    wild = replace(image(studies.HOSTILE), label=studies.HOSTILE, variant=replace(RIGHT, predicted=studies.HOSTILE))
    html = report_html(studies.usual(), (), examples(wild, title=studies.HOSTILE))
    assert html.count("<script") == 1
    assert Page(html).open == []


def test_masks_have_wide_pictures_and_mean_ious():
    masks = replace(examples(image(jpeg="/9j/" + "A" * MOST_CHARACTERS)), masks=True, seeds=1)
    html = report_html(studies.usual(), (), masks)
    page = Page(html)
    assert page.tags.count("img") == 1 and 'class="thumbnails masks"' in html
    assert "none: dog cb_s: cat" in page.text
