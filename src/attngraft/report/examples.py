"""Example images of a study, prepared for the page."""

from dataclasses import dataclass

from attngraft.results.examples import ExampleImages, ExamplePrediction
from attngraft.results.study import StudyResult
from attngraft.results.wording import baseline_of, shown

MOST = 24  #: maximum number of images on a page
MOST_CHARACTERS = 20_000  #: maximum length of a thumbnail in base64
MOST_OF_MASKS = 100_000  #: the same, of five pictures with masks


@dataclass(frozen=True, kw_only=True)
class ExampleLine:
    """What a model predicts for an image."""

    model: str
    prediction: str
    right: int  #: number of seeds that are correct
    state: str  #: "right" or "wrong" in all seeds, or "mixed"; empty for masks
    sign: str


@dataclass(frozen=True, kw_only=True)
class ExampleView:
    """An image with its label and one line per model."""

    label: str
    name: str
    lines: list[ExampleLine]
    source: str  #: data URL


@dataclass(frozen=True, kw_only=True)
class ExamplesView:
    """Groups of images: title and images."""

    variant: str
    seeds: int
    groups: list[tuple[str, list[ExampleView]]]
    masks: bool = False
    panels: str = ""


def example_view(result: StudyResult, examples: ExampleImages | None) -> ExamplesView | None:
    """Return the images of a study, at most `MOST`; None without images or if the variant is not in the study."""
    baseline = baseline_of(result)
    if examples is None or baseline is None or examples.variant not in [variant.name for variant in result.variants]:
        return None

    def line(model: str, prediction: ExamplePrediction) -> ExampleLine:
        if examples.masks:
            text = shown(prediction.predicted) or f"mIoU {100 * prediction.confidence:.1f}%"  # earlier versions
            return ExampleLine(model=model, prediction=text, right=0, state="", sign="")
        state = "wrong" if prediction.right == 0 else "right" if prediction.right == examples.seeds else "mixed"
        return ExampleLine(
            model=model,
            prediction=f"{shown(prediction.predicted)}, {100 * prediction.confidence:.0f}%",
            right=prediction.right,
            state=state,
            sign={"right": "✓", "wrong": "✗", "mixed": "~"}[state],
        )

    groups, left = [], MOST
    for group in examples.groups:
        images = [
            ExampleView(
                label=shown(image.label),
                name=shown(image.name),
                lines=[line(shown(baseline.name), image.baseline), line(shown(examples.variant), image.variant)],
                source=f"data:image/jpeg;base64,{image.jpeg}",
            )
            for image in group.images
            if len(image.jpeg) <= (MOST_OF_MASKS if examples.masks else MOST_CHARACTERS)
        ][:left]
        left -= len(images)
        if images:
            groups.append((shown(group.title), images))
    if not groups:
        return None
    return ExamplesView(
        variant=shown(examples.variant),
        seeds=examples.seeds,
        groups=groups,
        masks=examples.masks,
        panels=shown(examples.panels),
    )
