"""The hosts of a study: the one that its grafts stand on, and others that are set against it.

    grafts:
      - cb_s                                                           # on the study's host
      - {host: {name: deit_tiny_patch16_224, args: {img_size: 32}}}    # another host, as it is
      - {name: ViT with cb_s, host: deit_tiny_patch16_224, spec: cb_s}

On the command line `--against` takes a name, `NAME: {argument: value}`, or such an entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attngraft.errors import ConfigError, UsageError

ENTRY = "{name: ..., host: {name: ..., args: {...}}, spec: ...}"


@dataclass(frozen=True, kw_only=True)
class StudyHost:
    """A model that variants start from. Without a name the recipe's host is meant, and `args` add to its own."""

    name: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    pretrained: bool | None = None
    weights: str | None = None  #: a file of weights that all variants start from

    def over(self, host: Mapping[str, Any]) -> dict[str, Any]:
        """The recipe's `host` section with what is given here."""
        base = dict(host)
        if self.name is not None:
            base |= {"name": self.name, "args": {}, "weights": None}  # which fit no other host
        if self.pretrained or self.weights is not None:  # one takes the place of the other; the recipe refuses both
            base |= {"pretrained": bool(self.pretrained), "weights": self.weights}
        elif self.pretrained is not None:
            base["pretrained"] = False
        return {**base, "args": {**base["args"], **self.args}}

    def beside(self, host: Mapping[str, Any]) -> dict[str, Any]:
        """The `host` section of this host where `host` is that of the study's own: neither arguments nor a file of weights
        are shared, `pretrained: true` is.

        Raises:
            ConfigError: the study's host starts from a file, and nothing says what this one starts from.
        """
        if host.get("weights") is not None and self.weights is None and self.pretrained is None:
            raise ConfigError(
                f"the host {self.name}: the study's own starts from {host['weights']}, which is not for this one; give it "
                "`weights:` of its own, `pretrained: true`, or `pretrained: false` for random values"
            )
        return self.over(host)

    def plain(self) -> dict[str, Any]:
        """As a study file has it, without what is not given."""
        given = {"name": self.name, "args": dict(self.args), "pretrained": self.pretrained, "weights": self.weights}
        return {key: value for key, value in given.items() if value not in (None, {})}


def read_host(given: Any, field: str) -> StudyHost:
    """Another host from what a study file has under `host:`: a name, or a section.

    Raises:
        ConfigError: it has no name, or is nothing of the kind.
    """
    from attngraft.strict import read

    host = StudyHost(name=given) if isinstance(given, str) else read(StudyHost, given, where=field)
    if host.name is None or not host.name.strip():
        raise ConfigError(f"{field}: say which host it is, as in {ENTRY}")
    return host


def entry_against(text: str) -> dict[str, Any]:
    """What `--against` was given, as an entry of a study file's `grafts`.

    Raises:
        ConfigError: it is no YAML.
        UsageError: it is YAML, and of no form that is known.
    """
    from attngraft.yaml_config import parse_yaml

    given = parse_yaml(text, source=f"--against {text}")
    if isinstance(given, Mapping) and "host" in given:
        return dict(given)
    if isinstance(given, str) and given.strip():
        return {"host": {"name": given.strip()}}
    if isinstance(given, Mapping) and len(given) == 1:
        (name, args), *_ = given.items()
        if isinstance(name, str) and isinstance(args, Mapping | None):
            return {"host": {"name": name, "args": dict(args or {})}}
    raise UsageError(f'--against {text}: write HOST, "HOST: {{argument: value}}", or "{ENTRY}"')
