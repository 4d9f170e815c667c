"""Images for the report of a study of captioning: references, and both models' captions."""

from __future__ import annotations

import numpy as np
from PIL import ImageOps

from attngraft.results.examples import ExampleImages
from attngraft.study.example_masks import most_different, pictures_by_group, side_by_side
from attngraft.study.predictions import open_predictions
from attngraft.tasks.captioning import Captioning
from attngraft.tasks.images.stored import read_image
from attngraft.training.run_folder import RunFolder, RunRecord

SIDE = 240  #: largest side of a picture, in pixels
_PANELS = "Below each image: its references, then each model’s caption and its CIDEr-D."


def caption_examples(task: Captioning, baseline: RunRecord, variant: RunRecord, name: str) -> ExampleImages | None:
    """Return the images whose CIDEr-D differs most, with references and captions.

    Args:
        task: the task, without data.
        baseline, variant: runs of one seed.
        name: name of the variant.

    Returns:
        None if a run has no captions (`train.outputs`), or they are of different images.
    """
    with open_predictions(baseline) as before, open_predictions(variant) as after:
        if "caption" not in before or "caption" not in after or not np.array_equal(before.names, after.names):
            return None
        scores = [100 * table.array("cider") for table in (before, after)]
        groups = most_different(scores, name, "CIDEr-D")
        texts = [
            [f"{caption} (CIDEr-D {score:.0f})" for caption, score in zip(table["caption"], each, strict=True)]
            for table, each in zip((before, after), scores, strict=True)
        ]
        task.load_split(RunFolder(baseline.folder).split)
        files = {
            image: file
            for part in task.open_source().parts().values()
            for image, file in zip(part.names, part.images, strict=True)
        }
        wanted = [row for rows in groups.values() for row in rows]
        pictures = {
            row: side_by_side(
                [ImageOps.contain(read_image(files[str(before["image"][row])]).convert("RGB"), (SIDE, SIDE))]
            )
            for row in wanted
        }
        labels = {row: str(before["references"][row]).replace("\n", " / ") for row in wanted}
        return pictures_by_group(groups, before.names, texts, pictures, name, _PANELS, labels)
