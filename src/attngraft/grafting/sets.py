"""Sets of grafts, which depend on the host: `shortlist` and `all`."""

import dataclasses
from contextlib import suppress
from dataclasses import replace

from torch import nn

from attngraft.errors import HostError, UsageError, check_types
from attngraft.grafting.fit import fit
from attngraft.grafting.placement import place
from attngraft.grafting.spec import GraftSpec, Term, parse
from attngraft.grafting.where import Where, covering
from attngraft.hosts import Host, check_module, find_host
from attngraft.mechanisms.registry import GRAFT_SETS, graft_types

#: grafts of `shortlist`, by the time that they add to a training step; docs/guide/which-graft.md gives the reasons
SHORTLIST = ("cb", "cb_s", "vertical", "bisa@first:2", "elsa")

_CONTROL = "identity"  #: does nothing, so it is not among the grafts to try


def graft_set(model: nn.Module, name: str, *, pretrained: bool = False) -> list[str]:
    """Return the specifications of a set that fit `model`: `shortlist` or `all`.

    `shortlist` has those of `cb`, `cb_s`, `vertical`, `bisa@first:2` and `elsa` that the model accepts, cheapest first.
    `all` has every registered graft that it accepts, except `identity`. If only some sites accept a graft, its
    where-clause selects these. The model is not changed and may be on the meta device.

    Args:
        model: a host.
        name: of the set.
        pretrained: whether the model's weights are trained. Then grafts with an option `identity` get `identity=true`, and
            `shortlist` omits the others that change the model's output at initialization.

    Raises:
        UsageError: there is no such set.
        HostError: the model is not supported, or no graft of the set fits it.
    """
    check_module(model)
    check_types(name=(name, str))
    if name not in GRAFT_SETS:
        raise UsageError(f"unknown set of grafts {name!r}; sets: {', '.join(GRAFT_SETS)}")
    host, types = find_host(model), graft_types()
    if name == "shortlist":
        terms = [parse(text).terms[0] for text in SHORTLIST]
    else:
        terms = [Term(each, types[each].Options()) for each in types if each != _CONTROL]
    if pretrained:
        terms = [_starting_as_identity(term) for term in terms]
    if pretrained and name == "shortlist":
        terms = [term for term in terms if types[term.name].starts_as_identity(term.options)]
    fitting = [str(fitted) for term in terms if (fitted := _fitted(host, term)) is not None]
    if not fitting:
        reasons = dict.fromkeys(found.nowhere or found.reason or "" for found in (fit(host, term) for term in terms))
        raise HostError(
            f"no graft of {name} fits {type(host.core).__name__}: {'; '.join(reasons)}. attngraft doctor --host NAME lists "
            "the sites of a host and the grafts that they accept"
        )
    return fitting


def _starting_as_identity(term: Term) -> Term:
    """Return the form of `term` that starts as the identity, if it has an option for this."""
    if "identity" not in {field.name for field in dataclasses.fields(term.options)}:
        return term
    return replace(term, options=replace(term.options, identity=True))


def _fitted(host: Host, term: Term) -> Term | None:
    """Return `term`, restricted to the sites that accept it if necessary; None if no site does."""
    found = fit(host, term)
    if not found.taken:
        return None
    with suppress(HostError):
        place(host, GraftSpec((term,)))
        return term
    taken = [site for site in host.sites if site.path in found.taken]
    chosen = [taken[index].path for index in term.where.select(taken)]
    others = [path for path in (*found.taken, *found.refused) if path not in chosen]
    return replace(term, where=Where("patterns", patterns=covering(chosen, others)))
