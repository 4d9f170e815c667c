"""Interfaces of point models: classifiers of clouds, as timm's models, and of the points of a cloud."""

from typing import Any, ClassVar, Literal, cast

from torch import Tensor, nn

from attngraft.errors import UsageError


class PointModel(nn.Module):
    """Base class of point models, with what tasks and weights need to know of them."""

    labels: ClassVar[Literal["clouds", "points"]]  #: what is classified
    num_classes: int
    in_chans: int
    least_batch = 1  #: smallest batch in training; 2 if a batch norm has one value per cloud

    @property
    def attngraft_input(self) -> dict[str, Any]:
        """The kind of inputs, for tasks."""
        return {"kind": "points", "labels": self.labels, "least_batch": self.least_batch}

    @property
    def pretrained_cfg(self) -> dict[str, Any]:
        """The path of the last layer, where timm's models have it."""
        return {"classifier": self.last_layer()}

    def last_layer(self) -> str:
        """Return the path of the last layer."""
        raise NotImplementedError


class PointClassifier(PointModel):
    """Points (B, N, in_chans) to logits (B, num_classes), by features of clouds (B, num_features).

    Subclasses define `classifier`, a sequence whose last layer is the head.
    """

    labels = "clouds"
    num_features: int
    classifier: nn.Sequential

    def last_layer(self) -> str:
        return f"classifier.{len(self.classifier) - 1}"

    def forward_features(self, points: Tensor) -> Tensor:
        """Return the features (B, num_features) of clouds."""
        raise NotImplementedError

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits, or with `pre_logits` the input of the last layer."""
        layers = self.classifier[:-1] if pre_logits else self.classifier
        return cast(Tensor, layers(features))

    def forward(self, points: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(points))

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.classifier[-1]

    def reset_classifier(self, num_classes: int, *_: Any) -> None:
        """Replace the last layer with a new one for `num_classes`; 0: none."""
        self.num_classes = num_classes
        dense = [layer.out_features for layer in self.classifier[:-1] if isinstance(layer, nn.Linear)]
        parameter = next(self.parameters())
        head = self.make_head(dense[-1] if dense else self.num_features, num_classes)
        self.classifier[-1] = head.to(device=parameter.device, dtype=parameter.dtype).train(self.training)

    def make_head(self, width: int, num_classes: int) -> nn.Module:
        """Return a new last layer."""
        return nn.Linear(width, num_classes) if num_classes else nn.Identity()


class PointPartModel(PointModel):
    """Points (B, N, in_chans) and categories of the shapes (B,) to logits (B, N, num_classes)."""

    labels = "points"
    categories: int


def check_channels(points: Tensor, in_chans: int) -> None:
    """Check the shape of clouds.

    Raises:
        UsageError: it is not (B, N, in_chans).
    """
    if points.ndim != 3 or points.shape[-1] != in_chans:
        what = {3: "coordinates", 6: "coordinates and normals"}.get(in_chans, f"{in_chans} values per point")
        raise UsageError(f"this model takes clouds (B, N, {in_chans}) of {what}, not {tuple(points.shape)}")
