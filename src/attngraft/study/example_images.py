"""Images for the report of a study of images: where the baseline and the best variant differ."""

import base64
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attngraft.errors import AttngraftError, FolderError
from attngraft.results.examples import (
    ExampleGroup,
    ExampleImage,
    ExampleImages,
    ExamplePrediction,
    load_examples,
)
from attngraft.results.study import StudyResult, VariantResult
from attngraft.results.wording import baseline_of
from attngraft.study.config import StudyConfig
from attngraft.study.example_captions import caption_examples
from attngraft.study.example_masks import mask_examples
from attngraft.study.example_objects import object_examples
from attngraft.study.plan import finished_runs
from attngraft.study.predictions import open_predictions
from attngraft.tasks.captioning import Captioning
from attngraft.tasks.detection import Detection
from attngraft.tasks.images.inspection import open_thumbnails
from attngraft.tasks.images.sources.splitting import names_digest
from attngraft.tasks.images.task import ImageTask
from attngraft.tasks.segmentation import Segmentation
from attngraft.training.build import task_of
from attngraft.training.run_folder import RunRecord

log = logging.getLogger(__name__)

SHOWN = 6  #: number of images of each group
OF_CLASS = 3  #: number of images of each class
COLUMNS = ("target", "predicted", "confidence")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Predictions of a variant, with the same examples in the same order for all seeds."""

    names: np.ndarray  #: (N,)
    target: np.ndarray  #: (N,)
    predicted: np.ndarray  #: (seeds, N)
    confidence: np.ndarray  #: (seeds, N)

    @property
    def right(self) -> np.ndarray:
        """Share of seeds that are correct, (N,)."""
        share: np.ndarray = (self.predicted == self.target).mean(axis=0)
        return share

    def of(self, index: int, classes: Sequence[str]) -> ExamplePrediction:
        predicted = self.predicted[:, index]
        most = int(np.bincount(predicted).argmax())
        return ExamplePrediction(
            predicted=classes[most],
            confidence=round(float(self.confidence[predicted == most, index].mean()), 4),
            right=int((predicted == self.target[index]).sum()),
        )


def example_images(config: StudyConfig, result: StudyResult) -> ExampleImages | None:
    """Select at most 24 images and return them as thumbnails of at most 96 pixels.

    Thumbnails of an earlier report are reused, so the data are opened only for new ones.

    Returns:
        None if the task shows no images, no variant can be compared, or the images cannot be opened.
    """
    baseline, variant = baseline_of(result), best_variant(result)
    if baseline is None or variant is None:
        return None
    both = tuple(each for each in config.variants if each.name in (baseline.name, variant.name))
    finished = finished_runs(replace(config, variants=both))
    before, after = (  # with `until`, without runs that no decision is based on
        {run.seed: finished[each.name][run.seed] for run in each.runs if run.seed in finished[each.name]}
        for each in (baseline, variant)
    )
    try:
        return _selected(before, after, variant.name, config.out)
    except (AttngraftError, OSError, ValueError) as error:
        log.warning("the report has no example images: %s", error)
        return None


def best_variant(result: StudyResult) -> VariantResult | None:
    """Return the compared variant with the best mean of the primary metric."""
    sign = 1 if result.higher_is_better else -1
    compared = [v for v in result.variants if v.difference is not None and result.metric in v.last]
    return max(compared, key=lambda variant: sign * variant.last[result.metric].mean, default=None)


def _selected(
    baseline: Mapping[int, RunRecord], variant: Mapping[int, RunRecord], name: str, folder: Path
) -> ExampleImages | None:
    seeds = [seed for seed in variant if seed in baseline]
    first = baseline[seeds[0]]
    task, classes = task_of(first), first.facts.get("classes")
    if isinstance(task, Segmentation):
        return mask_examples(task, first, variant[seeds[0]], name)
    if isinstance(task, Detection):
        return object_examples(task, first, variant[seeds[0]], name)
    if isinstance(task, Captioning):
        return caption_examples(task, first, variant[seeds[0]], name)
    if not isinstance(task, ImageTask) or not classes:
        return None
    before, after = (_answers([runs[seed] for seed in seeds]) for runs in (baseline, variant))
    if before is None or after is None or not np.array_equal(before.names, after.names):
        return None
    groups = choose(before, after, classes, name)
    wanted = [str(before.names[index]) for _, indices in groups for index in indices]
    thumbnails = _thumbnails(task, wanted, folder)
    found = [
        ExampleGroup(
            title=title,
            images=[
                ExampleImage(
                    name=str(before.names[index]),
                    label=classes[before.target[index]],
                    baseline=before.of(index, classes),
                    variant=after.of(index, classes),
                    jpeg=thumbnails[str(before.names[index])],
                )
                for index in indices
                if str(before.names[index]) in thumbnails
            ],
        )
        for title, indices in groups
    ]
    shown = [group for group in found if group.images]
    return ExampleImages(variant=name, seeds=len(seeds), groups=shown) if shown else None


def _answers(records: Sequence[RunRecord]) -> Answers | None:
    """Read the predictions, sorted by name; None if a run lacks them or evaluated other examples."""
    runs: list[tuple[np.ndarray, ...]] = []
    for record in records:
        with open_predictions(record) as table:
            if not set(COLUMNS) <= set(table) or any(table.array(name).ndim != 1 for name in COLUMNS):
                return None
            if record.facts.get("split_digest") not in (None, names_digest(table.names)):
                raise FolderError(
                    f"{record.folder}: the names of its predictions are not those of its validation images"
                )
            order = np.argsort(table.names, kind="stable")
            runs.append((table.names[order], *(table.array(name)[order] for name in COLUMNS)))
    names, target = runs[0][:2]
    if any(not np.array_equal(run[0], names) for run in runs):
        return None
    predicted, confidence = (np.stack([run[column] for run in runs]) for column in (2, 3))
    return Answers(names=names, target=target, predicted=predicted, confidence=confidence)


def choose(before: Answers, after: Answers, classes: Sequence[str], name: str) -> list[tuple[str, list[int]]]:
    """Return groups of different examples: a title and the examples' indices."""
    gain = after.right - before.right
    sure = after.confidence.mean(axis=0)
    wrong = np.where(after.predicted == after.target, 0.0, after.confidence).mean(axis=0)
    used = np.zeros(len(gain), dtype=bool)

    def take(values: np.ndarray, count: int, among: np.ndarray) -> list[int]:
        """Return the examples with the largest positive values, new ones first; of equals those with high confidence."""
        order = np.lexsort((-sure, -values, used))
        found = order[(values > 0)[order] & among[order]][:count]
        used[found] = True
        return [int(index) for index in found]

    titles = (f"Right with {name}, wrong with the baseline", f"Right with the baseline, wrong with {name}")
    if len(before.predicted) > 1:
        titles = (f"Right in more seeds with {name}", "Right in more seeds with the baseline")
    groups = [
        (titles[0], take(gain, SHOWN, ~used)),
        (titles[1], take(-gain, SHOWN, ~used)),
        (f"Most confident errors of {name}", take(wrong, SHOWN, ~used)),
    ]
    counts = np.bincount(before.target, minlength=len(classes))
    by_class = np.bincount(before.target, weights=gain, minlength=len(classes)) / np.maximum(counts, 1)
    for sign, index in ((1, int(by_class.argmax())), (-1, int(by_class.argmin()))):
        change = float(by_class[index])
        if sign * change <= 0:
            continue
        of_class = before.target == index
        shares = [f"{100 * each.right[of_class].mean():.1f}%" for each in (before, after)]
        what = "gains" if sign > 0 else "loses"
        title = f"The class that {what} most with {name}: {classes[index]}, recall {shares[0]} to {shares[1]}"
        groups.append((title, take(sign * gain, OF_CLASS, of_class)))
    return [(title, indices) for title, indices in groups if indices]


def _thumbnails(task: ImageTask, names: Sequence[str], folder: Path) -> dict[str, str]:
    """Return JPEG files in base64 by name, from the previous examples.json or the data."""
    earlier = load_examples(folder)
    found = {image.name: image.jpeg for group in (earlier.groups if earlier else []) for image in group.images}
    missing = [name for name in names if name not in found]
    if missing:
        for name, image in open_thumbnails(task.config.data, missing).items():
            file = io.BytesIO()
            image.save(file, "JPEG", quality=80)
            found[name] = base64.b64encode(file.getvalue()).decode()
    return found
