"""Captioning of images by encoder-decoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import ConfigError, DataError, HostError, UsageError
from attngraft.files import printable, user_path
from attngraft.models.host_input import host_input, other_input
from attngraft.models.schemes import creation_errors
from attngraft.results.measured import ClosedForm, Measured
from attngraft.results.records import Records, RecordTable
from attngraft.results.sections import Metric, Section
from attngraft.results.study import Chance
from attngraft.strict import FieldError, read
from attngraft.tasks.captioning.cider import Frequencies
from attngraft.tasks.captioning.codec import CaptioningCodec
from attngraft.tasks.captioning.config import CaptioningConfig
from attngraft.tasks.captioning.encoder import EncodedCaptioner, EncoderConfig, create_encoder
from attngraft.tasks.captioning.features import LARGEST_ROWS, FeatureFile, open_features
from attngraft.tasks.captioning.floors import CONSTANT, floors
from attngraft.tasks.captioning.host_tokens import SAVE, host_tokens, read_tokens
from attngraft.tasks.captioning.metrics import RULES, measure, statistics
from attngraft.tasks.captioning.ptb import tokenize
from attngraft.tasks.captioning.reward import CiderReward
from attngraft.tasks.captioning.sections import sections
from attngraft.tasks.captioning.source import CaptionedImages, CaptionSource, open_captions
from attngraft.tasks.captioning.split import IGNORED, CaptionSplit
from attngraft.tasks.captioning.transformers_captioner import KIND, TransformersCaptioner, image_input
from attngraft.tasks.captioning.vocabulary import CaptionTokens, build_vocabulary, words_of
from attngraft.tasks.configured import ConfiguredTask
from attngraft.tasks.facts import LARGEST_SIZE, Facts, InputFacts
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.sources.splitting import split_digest
from attngraft.tasks.seeding import generator
from attngraft.tasks.task import FITTED_FOLDER, SPLIT_FILE, Batch, Loss, StepContext, TaskData, unwrapped
from attngraft.timing.macs import evaluating

_PLATEAU = 0.95  #: a loss of more than this part of the loss by frequencies is on its plateau


@dataclass(frozen=True, kw_only=True)
class CaptionInputFacts(InputFacts):
    """Facts about images or features, and words."""

    vocabulary: str  #: digest
    words: int
    rows: int | None  #: of the features of an image; None: the host takes images
    channels: int | None
    encoder: EncoderConfig | None  #: of the features; None: of another model
    encoder_digest: str

    def __post_init__(self) -> None:
        for name in ("words", "rows", "channels"):
            largest = LARGEST_ROWS if name == "rows" else LARGEST_SIZE
            if (size := getattr(self, name)) is not None and not 0 < size <= largest:
                raise FieldError(name, f"must be from 1 to {largest}")


@dataclass(frozen=True, kw_only=True)
class CaptioningFacts(Facts):
    """Facts about captioning data."""

    sizes: dict[str, int]
    input: CaptionInputFacts
    constant_caption: str
    floors: dict[str, dict[str, dict[str, float]]]  #: metrics of captions without a model, by split and kind
    unigram: dict[str, float]  #: cross-entropy of the words of each split under their frequencies in training

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, numbers in (("floors", self.floors), ("unigram", self.unigram)):
            if missing := {"val", *self.sizes} - {"train"} - numbers.keys():
                raise FieldError(name, f"must have an entry for each split; {min(missing)} is missing")
        if without := [part for part, known in self.floors.items() if CONSTANT not in known]:
            raise FieldError(f"floors.{without[0]}", f"must have the metrics of the {CONSTANT} caption")


class Captioning(ConfiguredTask):
    """Captioning of images by encoder-decoders.

    Batches are those of `CaptionSplit`. In training with cross-entropy an example is a caption with its image, or an image
    with all of its captions; in self-critical training and in evaluation it is an image.
    """

    name = "captioning"
    default_recipe = "tiny-captioning"
    primary = "cider"  # default; the recipe can set another metric
    metrics: ClassVar = {
        "cider": Metric(label="CIDEr-D", best=1000),
        **{f"bleu{order}": Metric(label=f"BLEU-{order}", best=100) for order in range(1, 5)},
        "rouge_l": Metric(label="ROUGE-L", best=100),
        "loss": Metric(label="loss", higher_is_better=False),
    }
    column_rules = RULES
    capabilities = frozenset({"data_check", "explorer", "export", "folds", "generation", "halving", "predict"})
    has_light_inference = True
    auto_class = "AutoModelForImageTextToText"
    hosts = ("m2_transformer", "hf:FOLDER")
    config: CaptioningConfig
    config_class = CaptioningConfig
    facts_class = CaptioningFacts
    sources = "a folder with captions of COCO or Flickr, or with captions_train.jsonl, such as ./flickr8k"

    def __init__(self, config: CaptioningConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self._tokens: CaptionTokens | None = None
        self._given: HostInput | None = None  # images of a host that takes them, set by load or codec
        self._expected: str | None = None  # digest of a trained model's vocabulary
        self._parts: dict[str, CaptionedImages] = {}  # set by load
        self._frequencies: dict[str, Frequencies] = {}  # of each part, for its CIDEr-D
        self._reward: CiderReward | None = None

    # -- data ----------------------------------------------------------------------------------------------------------

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        host, config = _captioner(model_data_config), self.config
        limit = host["decoder"]["max_length"]
        if limit is not None and config.max_length > limit:
            raise ConfigError(
                f"task.max_length: the host has {limit} positions, got {config.max_length}; use --set "
                f"task.max_length={limit}"
            )
        source = self.open_source()
        self._given = _images_of(host)
        features, facts, notes = self._open_inputs(source)
        self._random_split, self._parts = source.drawn, source.parts()
        tokens = self._tokens = self._tokens or (self._vocabulary(source) if self._given is None else host_tokens(host))
        if self._expected not in (None, tokens.digest):
            raise DataError(_VOCABULARY)
        make = partial(CaptionSplit, features=features, tokens=tokens, max_length=config.max_length)
        per = "images" if config.objective == "reward" else config.examples
        val = make(source.val, part="val", per="images")
        sizes = {"vocab_size": len(tokens), "pad": tokens.pad, "start": tokens.start, "end": tokens.end}
        return TaskData(
            train=make(source.train, part="train", per=per),
            val=val,
            test=None if source.test is None else make(source.test, part="test", per="images"),
            model_args={**sizes, "feature_dim": facts["channels"]} if self._given is None else {},
            whole=(lambda: self._whole(source, make)) if source.drawn and source.test is None else None,
            facts=self._facts(source, facts, [*source.notes, *source.copies(), *notes]),
        )

    def open_source(self) -> CaptionSource:
        """Return the images with captions, split.

        Raises:
            DataError: the data cannot be used.
        """
        return open_captions(self.config.data, saved_split=self._saved_split)

    def _vocabulary(self, source: CaptionSource) -> CaptionTokens:
        counted, settings = [source.train], self.config.vocabulary
        counted += [source.val] if settings.validation else []
        texts = [caption for images in counted for captions in images.captions for caption in captions]
        return build_vocabulary(texts, min_count=settings.min_count)

    def _open_inputs(self, source: CaptionSource) -> tuple[FeatureFile | HostInput, dict[str, Any], list[str]]:
        """Return features or the input of the host or encoder, facts about them, and notes.

        Raises:
            ConfigError: features are given to a host that takes images.
        """
        encoder = self.config.encoder
        if self._given is not None:
            for name in ("encoder", "features"):
                if getattr(self.config, name) is not None:
                    raise ConfigError(f"task.{name}: the host has its own image encoder; remove task.{name}")
            _check_images(source)
            return self._given, {"rows": None, "channels": None, "encoder": None, "encoder_digest": ""}, []
        if encoder is not None:
            if encoder.weights is not None and not user_path(encoder.weights).exists():
                raise ConfigError(f"task.encoder.weights: {encoder.weights}: no such file or folder; correct the path")
            _check_images(source)
            created = create_encoder(encoder)
            with (
                evaluating(created),
                torch.no_grad(),
                creation_errors(encoder.name, encoder.args, maker="task.encoder"),
            ):
                rows, channels = created(created.blank()).shape[1:]
            if rows > LARGEST_ROWS:
                raise ConfigError(
                    f"task.encoder: {encoder.name} gives {rows} rows per image, more than {LARGEST_ROWS}; use smaller images"
                )
            facts = {"rows": rows, "channels": channels, "encoder": None, "encoder_digest": ""}
            note = [] if encoder.trained or self.config.train_encoder else [_UNTRAINED.format(encoder.name)]
            return created.given, facts, note
        file = open_features(self.config, source)
        known = file.encoder
        note = [_UNTRAINED.format(known.name)] if known is not None and not known.trained else []
        rows, channels = file.rows(source.train, 0).shape
        described = None if known is None else {**vars(known), "args": dict(known.args)}
        digest = file.encoder_digest
        return file, {"rows": rows, "channels": channels, "encoder": described, "encoder_digest": digest}, note

    def _whole(self, source: CaptionSource, make: Any) -> CaptionSplit:
        """Return training and validation images together."""
        whole = source.train.joined(source.val)
        self._parts["whole"] = whole
        split: CaptionSplit = make(whole, part="whole", per="images")
        return split

    def _facts(self, source: CaptionSource, inputs: Mapping[str, Any], notes: Sequence[str]) -> dict[str, Any]:
        tokens = self._known()
        judged = {name: images.captions for name, images in source.parts().items() if name != "train"}
        caption, known = floors(source.train.captions, judged)
        lengths = [len(words_of(text)) for texts in source.train.captions for text in texts]
        facts: dict[str, Any] = {
            "task": self.name,
            "source": self.config.data.source,
            "kind": "images with captions",
            "where": source.where,
            "split": source.origin,
            "sizes": {name: len(images) for name, images in source.parts().items()},
            "captions": {name: sum(map(len, images.captions)) for name, images in source.parts().items()},
            "length": {"median": int(np.median(lengths)), "longest": max(lengths)},
            "input": {"vocabulary": tokens.digest, "words": len(tokens), **inputs},
            "constant_caption": caption,
            "floors": known,
            "unigram": _unigram(source, tokens),
            "split_digest": split_digest(source.val),
            "check": {"train_digest": split_digest(source.train)},
            **({} if source.test is None else {"test_digest": split_digest(source.test)}),
            "notes": list(notes),
        }
        return printable(facts) | ({"split_file": SPLIT_FILE} if source.drawn else {})

    def load_files(self, folder: Path) -> None:
        self._tokens = read_tokens(folder) or self._tokens

    def save_files(self, folder: Path) -> None:
        if self._tokens is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._tokens.save(folder)

    def use_fitted_transform(self, facts: Mapping[str, Any]) -> None:
        self._expected = facts.get("input", {}).get("vocabulary")

    def compatible(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        """Return whether both have the same vocabulary and features of the same model."""
        names = ("vocabulary", "channels", "encoder_digest")
        return all(a["input"].get(name) == b["input"].get(name) for name in names)

    @classmethod
    def missing_from_host(cls, model_data_config: Mapping[str, Any]) -> str:
        if model_data_config.get("kind") != KIND or model_data_config.get("tokenizer"):
            return ""
        return f"the tokenizer that it was trained with (save it in the host's folder: {SAVE})"

    # -- model ---------------------------------------------------------------------------------------------------------

    @classmethod
    def refusal(cls, host: nn.Module, name: str) -> str:
        return "" if (other_input(host) or {}).get("kind") in _KINDS else "it writes no captions"

    def build(self, host: nn.Module, facts: Mapping[str, Any]) -> nn.Module:
        """Return the captioner, with its image encoder if it has one."""
        given = other_input(host)
        if given is not None and given["kind"] == KIND:
            return TransformersCaptioner(host, given)
        config = self.config.encoder
        if config is None:
            return host
        try:
            encoder = create_encoder(config)
        except (HostError, UsageError):  # `load` has created it; elsewhere, the run's own weights are loaded afterwards
            encoder = create_encoder(replace(config, pretrained=False, weights=None))
        return EncodedCaptioner(host, encoder, trained=self.config.train_encoder)

    def weights(self, batch: Batch) -> Mapping[str, float]:
        """Return the number of words with their ends, or in self-critical training of images."""
        if self.config.objective == "reward":
            return {"loss": float(len(batch["index"]))}
        return {"loss": float((batch["labels"] != IGNORED).sum())}

    def step(self, model: nn.Module, batch: Batch, at: StepContext) -> Mapping[str, Loss]:
        """Return the cross-entropy of the captions' words, or the loss of self-critical training.

            -1/K sum_k (r_k - b_k) 1/L sum_t log p(w_kt)

        for K sampled captions of an image with rewards r, baselines b and words w; L is the largest length of a caption, not
        its own. Captions are sampled without dropout, and their probabilities have dropout.

        Source: S. J. Rennie et al., "Self-critical Sequence Training for Image Captioning", 2017; baseline and length as in
        the meshed-memory transformer.
        """
        if self.config.objective == "cross_entropy":
            return {
                "loss": Loss(mean=F.cross_entropy(self._logits(model, batch).flatten(0, 1), batch["labels"].flatten()))
            }
        sampled, rewards = self._sample(at, batch)
        tokens, (images, count, _) = self._known(), sampled.shape
        rows = sampled.flatten(0, 1)
        inputs = torch.cat([rows.new_full((len(rows), 1), tokens.start), rows[:, :-1]], dim=1)
        logits = model(batch["inputs"], inputs, torch.arange(images, device=rows.device).repeat_interleave(count))
        scores = -F.cross_entropy(logits.float().transpose(1, 2), rows, reduction="none")
        ended = (rows == tokens.end).long()
        written = ended.cumsum(1) - ended == 0  # up to the end
        mean = (scores * written).sum(1) / self.config.max_length
        loss = -(mean.view(images, count) * self._advantages(rewards).to(mean)).mean()
        return {"loss": Loss(mean=loss), "reward": Loss(mean=100 * rewards.mean().to(loss), trained=False)}

    @torch.no_grad()
    def _sample(self, at: StepContext, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return K captions of each image (B, K, L) and their rewards (B, K)."""
        settings, called = self.config.reward, cast(Any, at.model)
        draws = None
        if settings.draw == "multinomial":
            shape = settings.samples, self.config.max_length
            numbers = [1 - generator(at.seed, at.epoch, i).random(shape, np.float32) for i in batch["index"].tolist()]
            draws = torch.from_numpy(np.stack(numbers)).to(batch["index"].device)
        with evaluating(called):
            sampled: Tensor = called.sample(
                batch["inputs"], count=settings.samples, max_new_tokens=self.config.max_length, draws=draws
            )
        images = batch["index"].repeat_interleave(settings.samples).cpu().numpy()
        reward = self._rewards()
        scores = reward.score(self._known().hypothesis_ids(sampled.flatten(0, 1)), images)
        return sampled, torch.from_numpy(scores).view(len(sampled), settings.samples)

    def _advantages(self, rewards: Tensor) -> Tensor:
        baseline = rewards.mean(dim=1, keepdim=True)
        if self.config.reward.baseline == "leave_one_out":
            count = rewards.shape[1]
            baseline = (count * baseline - rewards) / (count - 1)
        return rewards - baseline

    def _rewards(self) -> CiderReward:
        """Return the reward: CIDEr-D against the reference captions of the training images."""
        if self._reward is None:
            references = self._known().reference_ids(self._parts["train"].captions)
            self._reward = CiderReward(references, documents=self.config.reward.documents)
        return self._reward

    def infer(self, model: nn.Module, batch: Batch, *, full: bool = True) -> Records:
        if (other_input(unwrapped(model)) or {}).get("kind") == KIND:  # a host that is evaluated as it is
            model = self.build(unwrapped(model), {})
        logits, labels = self._logits(model, batch).detach(), batch["labels"]
        nll = F.cross_entropy(logits.transpose(1, 2).float(), labels, reduction="none").sum(1).double()
        images = len(batch["index"])
        codec = self._codec()
        captions = codec.decode(codec.generate(model, batch["inputs"], greedy=not full))
        references = batch["references"]
        found = statistics(
            [tokenize(caption) for caption in captions],
            [[tokenize(each) for each in texts] for texts in references],
            frequencies=self._frequencies_of(batch["part"]),
        )
        tokens = (labels != IGNORED).sum(1)
        return Records(
            statistics={
                "nll": nll.new_zeros(images).index_add(0, batch["image"], nll).cpu().numpy(),
                "tokens": tokens.new_zeros(images).index_add(0, batch["image"], tokens).cpu().numpy(),
                **found,
            },
            outputs={
                "image": np.array(
                    [self._parts[batch["part"]].names[i] for i in batch["index"].tolist()], dtype=np.str_
                ),
                "caption": np.array(captions, dtype=np.str_),
                "references": np.array(["\n".join(texts) for texts in references], dtype=np.str_),
            },
        )

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch["inputs"], batch["input_ids"], batch["image"])
        return logits

    def _frequencies_of(self, part: str) -> Frequencies:
        """Return the document frequencies of a part, whose images are the documents."""
        if part not in self._frequencies:
            captions = self._parts[part].captions
            self._frequencies[part] = Frequencies.of([[tokenize(each) for each in texts] for texts in captions])
        return self._frequencies[part]

    def _known(self) -> CaptionTokens:
        if self._tokens is None:
            raise TypeError("the task has no vocabulary yet; call load or load_files first")
        return self._tokens

    def _codec(self, inputs: Mapping[str, Any] | None = None) -> CaptioningCodec:
        encoder, found = self.config.encoder, inputs or {}
        known, given = found.get("encoder"), self._given
        if encoder is not None:
            given = HostInput.from_model(host_input(encoder.name, dict(encoder.args)))
        return CaptioningCodec(
            self._known(),
            self.config,
            given=given,
            encoder=None if known is None else read(EncoderConfig, known, where="facts.input.encoder"),
            digest=found.get("encoder_digest", ""),
            rows=found.get("rows") or 1,
            channels=found.get("channels") or 1,
        )

    def codec(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> CaptioningCodec:
        self._given = _images_of(model_data_config)
        if self._tokens is None or self._tokens.digest != facts["input"]["vocabulary"]:
            raise DataError(_VOCABULARY)
        return self._codec(facts["input"])

    # -- metrics -------------------------------------------------------------------------------------------------------

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        found = measure({name: table.array(name) for name in ("cider", "bleu", "rouge_l")})
        sums = np.stack([table.array("nll"), table.array("tokens")], axis=1).astype(float)
        loss = ClosedForm(sums, lambda total: total[:, 0] / total[:, 1])
        return Measured(
            values={**found.values, "loss": loss.point},
            statistics={**found.statistics, "loss": loss},
            comparable={"loss": facts["input"]["vocabulary"]},
        )

    def chance(self, table: RecordTable, facts: Mapping[str, Any]) -> Chance:
        """Return the metrics of a constant caption, and the loss by the frequencies of words."""
        part = "test" if "test" in facts["sizes"] else "val"
        known = facts["floors"][part]
        return Chance(
            description=f"always the caption “{facts['constant_caption']}”",
            values={**known[CONSTANT], "loss": facts["unigram"][part]},
        )

    def training_note(self, metrics: Mapping[str, float], facts: Mapping[str, Any]) -> str:
        """Return a warning if the validation loss is hardly below that of the words' frequencies in training."""
        loss, frequencies = metrics.get("loss", 0.0), facts["unigram"]["val"]
        if loss < _PLATEAU * frequencies:
            return ""
        return (
            f"the decoder has learned little more than the frequencies of words: the validation loss is {loss:.3g}, and "
            f"that of the frequencies alone {frequencies:.3g}; use another learning rate (--set optimizer.lr), or more "
            "updates"
        )

    def sections(self, predictions: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> list[Section]:
        part = "test" if "test" in facts["sizes"] else "val"
        return sections(predictions, constant=facts["constant_caption"], floors=facts["floors"][part])


_VOCABULARY = f"the run's vocabulary ({FITTED_FOLDER} in its folder) is missing or was changed; restore its files"
_UNTRAINED = "The image features are of an untrained model ({}), so captions can hardly depend on the images."


_KINDS = ("regions", KIND)  #: of the inputs of captioners


def _captioner(host: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the host's input.

    Raises:
        ConfigError: the host is not a captioner.
    """
    if host.get("kind") not in _KINDS:
        raise ConfigError(
            "task captioning: the host writes no captions; use --host attngraft:m2_transformer, whose features may be those "
            "of any image model (attngraft features --help), or hf:FOLDER with a VisionEncoderDecoderModel"
        )
    return host


def _images_of(host: Mapping[str, Any]) -> HostInput | None:
    """Return the input of a host that takes images; None if it takes features."""
    return image_input(host) if host.get("kind") == KIND else None


def _check_images(source: CaptionSource) -> None:
    """Check that all images exist.

    Raises:
        DataError: one does not.
    """
    for images in source.parts().values():
        for path, place in zip(images.images, images.places, strict=True):
            if not path.is_file():
                raise DataError(f"{path}: no such image ({place}); restore it, or correct task.data.images")


def _unigram(source: CaptionSource, tokens: CaptionTokens) -> dict[str, float]:
    """Return the cross-entropy of each split's words and ends under their frequencies in the training part, plus one."""
    counts = {
        name: np.bincount(
            np.concatenate([tokens.encode(each)[1:] for texts in images.captions for each in texts]),
            minlength=len(tokens),
        )
        for name, images in source.parts().items()
    }
    train = counts["train"] + 1
    surprise = np.log(train.sum() / train)
    return {name: float(each @ surprise / each.sum()) for name, each in counts.items()}
