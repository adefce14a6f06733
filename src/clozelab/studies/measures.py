"""The measures of a cell beside its task scores, by kind.

`MEASURERS` has one function for each kind (studies/scores.py lists the kinds). It is given the cell
as a `Measuring` and the name after the dot, and returns a `Value`, or None if the model cannot be
measured this way. A new kind is one function and one line in each of the two tables.

Masked tokens are harder to predict under some masks than under others. If the variants of a study
mask differently, the masked-LM loss of all is measured under the masks of the base. That favours
the base: `under.VARIANT` measures all under the masks of another variant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from clozelab import registry
from clozelab.config.recipe import Recipe
from clozelab.contracts import Pooling
from clozelab.errors import UserError
from clozelab.models.generator import encoder_predicts
from clozelab.models.load import load, pretrained
from clozelab.models.model import Model
from clozelab.models.reader import Text
from clozelab.objectives import PAIRS
from clozelab.pretraining.held_out import evaluate
from clozelab.remote.cache import local_file
from clozelab.runs import warm
from clozelab.runs.diagnostics import followed_objective, plateau_of
from clozelab.runs.directory import Run
from clozelab.runs.events import drained, means
from clozelab.scoring import probe as probes
from clozelab.scoring.facts import NAMED_FACTS, find_facts
from clozelab.scoring.frozen import FrozenEncoder
from clozelab.scoring.joint import KINDS, JointScores, joint
from clozelab.scoring.likelihood import Nats, TextScorer, scorer
from clozelab.scoring.pairs import NAMED_PAIRS, PairFiles, find_pairs
from clozelab.scoring.probed import ProbeTask
from clozelab.studies.records import packed_items
from clozelab.studies.request import Cell, StudyRequest
from clozelab.studies.scores import TUNINGS
from clozelab.studies.spec import Variant
from clozelab.text.store import Corpus
from clozelab.text.store.corpus import open_stores
from clozelab.training.loop import Measured
from clozelab.training.world import join

_PAIR_FORMATS = {"next_sentence": "next", "sentence_order": "order"}
# Not tuned: far above the noise of single steps.
_SPIKE = 0.5  # nats above the mean of the last `_WINDOW` logged losses
_WINDOW = 20


@dataclass(frozen=True)
class Value:
    """The value of a measure, the number of its items, and their scores if they are few."""

    score: float
    size: float | None = None
    items: Sequence[float] = ()


@dataclass(frozen=True)
class Measuring:
    """A cell to be measured, whose run is done."""

    request: StudyRequest
    cell: Cell
    model: Path  # the run with its weights
    folder: Path
    device: str | None = None

    @cached_property
    def corpus(self) -> str:
        """The corpus with the held-out text: the first that the cell reads."""
        return str(open_stores(self.request.stores(self.cell.variant))[0][0].path)

    @cached_property
    def held_out(self) -> Measured:
        """Every objective's sums under the variant's own masks."""
        return self.evaluate()

    @cached_property
    def joint(self) -> JointScores | None:
        """Scores of two words masked together in held-out text, if the model sees both sides."""
        text_scorer = _scorer(self)
        if text_scorer is None or text_scorer.kind not in KINDS:
            return None
        return joint(
            text_scorer, Corpus.open(self.corpus).documents("held_out"), device=self.device
        )

    def evaluate(self, *, pairs: str | None = None, masks: Recipe | None = None) -> Measured:
        """Every objective's sums over the held-out blocks, or over twice as many pairs."""
        blocks = self.request.study.blocks * (2 if pairs else 1)
        options: dict[str, Any] = {"pairs": pairs, "masks": masks, "blocks": blocks}
        return evaluate(str(self.model), self.corpus, **options, device=self.device)


def measured(cell: Measuring) -> dict[str, Any]:
    """The measures of a cell, and whether its masked-LM loss is under the masks of the base."""
    values, measures = dict[str, Value](), measurable(cell.request)
    for measure in measures:
        kind, _, name = measure.partition(".")
        value = MEASURERS[kind](cell, name)
        if value is not None:
            values[measure] = value
    return {
        "scores": {name: value.score for name, value in values.items()},
        "sizes": {name: value.size for name, value in values.items() if value.size},
        "items": {name: packed_items(one.items) for name, one in values.items() if len(one.items)},
        "base_masks": "held_out.masked_lm" in values and _masks_differ(cell.request),
        "measures": measures,
    }


def measurable(request: StudyRequest) -> list[str]:
    """The measures computed from a model; others come from its fine-tunings or its log."""
    read_off, missing = (*TUNINGS, "run"), unmeasurable(request)
    measures = request.study.measures
    return [m for m in measures if m not in missing and m.partition(".")[0] not in read_off]


def unmeasurable(request: StudyRequest) -> dict[str, str]:
    """The measures that cannot be computed here, each with the reason and what to do."""
    missing = dict[str, str]()
    for measure in request.study.measures:
        kind, _, name = measure.partition(".")
        try:
            if kind in ("probe", "cls"):
                ProbeTask.named(name, root=request.task_data).check()
            elif kind in _FINDERS:
                _FINDERS[kind](name, root=request.task_data, columns={})
        except UserError as error:
            problem, fix, *_ = [*str(error).split("\n")[0].split("; "), ""]
            missing[measure] = f"{problem}; {fix}" if fix else problem
    return missing


def _held_out_loss(cell: Measuring, objective: str) -> Value | None:
    own = (Run(cell.folder).result() or {}).get("held_out", {})
    if objective not in own:
        return None
    if objective == "masked_lm" and _masks_differ(cell.request):
        # A loss under the variant's own masks could not be compared.
        return _loss_under_masks(cell, _base(cell.request))
    sums = cell.held_out
    return _loss(sums, objective) if objective in sums else Value(own[objective]["loss"])


def _loss_under_variant(cell: Measuring, variant: str) -> Value | None:
    return _loss_under_masks(cell, cell.request.recipe(variant))


def _loss_under_masks(cell: Measuring, masks: Recipe) -> Value | None:
    """The masked-LM loss under the masks of a recipe; None if they do not fit the model."""
    load(str(cell.model))  # an error of the model itself must be reported
    try:
        return _loss(cell.evaluate(masks=masks), "masked_lm")
    except (UserError, KeyError):
        return None


def _pair_accuracy(cell: Measuring, objective: str) -> Value | None:
    """The accuracy of the model's pair head on the pairs of an objective, its own or another."""
    if not {*PAIRS} & {*pretrained(load(str(cell.model))).heads}:
        return None
    sums = cell.evaluate(pairs=_PAIR_FORMATS[objective])
    (head,) = {*PAIRS} & {*sums}
    return Value(100 * means(sums)[head]["accuracy"], sums[head]["count"])


def _own_measure(cell: Measuring, name: str) -> Value:
    measure = registry.find("measure", name)
    if measure is None:
        raise UserError(f"own.{name}: is not registered; import its module first")
    return Value(float(measure(load(str(cell.model)), cell.corpus)))


def _probe_score(cell: Measuring, task: str, *, pool: Pooling = "mean") -> Value | None:
    """The score of a probe of the frozen encoder, at the chosen layer."""
    loaded, probe_task = load(str(cell.model)), ProbeTask.named(task, root=cell.request.task_data)
    if pool == "cls" and loaded.recipe.encoder.layout.summary is None:
        return None
    probe_task = warm.shared((task, _digests(probe_task)), lambda: probe_task)
    texts = warm.shared(("texts", _tokenisation_key(loaded)), dict[str, Text])
    with join(cell.device) as world:
        loaded.module.to(world.device).eval()
        encoder = FrozenEncoder(loaded, world.device, pool=pool, texts=texts)
        layers = range(encoder.layers)
        probed = drained(probes.follow(probe_task, encoder, layers=layers, errors=False))
    score = probed.scores[probed.metrics[0]]
    if probed.metrics[0] != "accuracy" or probed.right is None:
        return Value(score, probed.scored)
    return Value(score, probed.scored, (100.0 * probed.right).tolist())


def _minimal_pairs(cell: Measuring, name: str) -> Value | None:
    """How often the good text of a minimal pair is likelier."""
    pairs, text_scorer = find_pairs(name, root=cell.request.task_data, columns={}), _scorer(cell)
    if text_scorer is None:
        return None
    key = (name, _digests(pairs), _tokenisation_key(text_scorer.model))
    tokens = warm.shared(key, lambda: pairs.tokens(text_scorer))
    scores = drained(pairs.follow(text_scorer, tokens=tokens, device=cell.device))
    return Value(scores.all.accuracy, len(scores.pairs), (100 * scores.outcomes).tolist())


def _digests(files: ProbeTask | PairFiles) -> tuple[tuple[str, str], ...]:
    """The digests of files, as a cache key."""
    return tuple(sorted(files.digests().items()))


def _tokenisation_key(model: Model) -> str:
    """A cache key of all settings that determine how a model tokenises texts."""
    recipe = model.recipe
    return repr((model.tokenizer.to_str(), recipe.encoder.layout, recipe.blocks.length))


def _facts(cell: Measuring, name: str) -> Value | None:
    """How often the object of a cloze fact is the best candidate."""
    facts, text_scorer = find_facts(name, root=cell.request.task_data, columns={}), _scorer(cell)
    if text_scorer is None or text_scorer.kind != "masked":
        return None
    scores = drained(facts.follow(text_scorer, device=cell.device))
    return Value(scores.all.at_1, len(scores.facts), (100 * scores.at_1).tolist())


def _joint_loss(cell: Measuring, name: str) -> Value | None:
    """The loss of two words masked together: as the model predicts them, or by the chain rule."""
    joint = cell.joint
    return None if joint is None else _mean(-(joint.own if name == "two" else joint.chain))


def _chain_gain(cell: Measuring, name: str) -> Value | None:
    """The gain in likelihood of the chain rule over two independent words."""
    return None if cell.joint is None else _mean(cell.joint.gain)


def _mean(items: Nats) -> Value:
    return Value(float(items.mean()), len(items), items.tolist())


def _scorer(cell: Measuring) -> TextScorer | None:
    """The scorer of the encoder; None if a generator predicts tokens in its place."""
    loaded = load(str(cell.model))
    if not encoder_predicts(loaded):
        return None
    words = loaded.recipe.encoder.reads == "words"
    return scorer(loaded, spelling=Corpus.open(cell.corpus).spelling if words else None)


def _log_statistic(cell: Measuring, name: str) -> Value | None:
    """From a run's log: the number of loss spikes, or the tail ratio of gradient norms."""
    run = Run(cell.folder)
    if name == "gradient_tail":
        norms = [event["norm"] for event in run.events("step") if event.get("norm") is not None]
        if len(norms) < 2:
            return None
        cuts = quantiles(norms, n=100, method="inclusive")
        return Value(cuts[98] / max(cuts[49], 1e-12))
    points = run.losses().get(followed_objective(run.recipe()), [])
    losses = [loss for _, loss in points]
    jumps = sum(
        loss > fmean(losses[at : at + _WINDOW]) + _SPIKE for at, loss in enumerate(losses[_WINDOW:])
    )
    return Value(float(jumps))


def own_files(request: StudyRequest) -> list[Path]:
    """The files of minimal pairs and facts that are no named sets."""
    words = [measure.partition(".") for measure in measurable(request)]
    named = {*NAMED_PAIRS, *NAMED_FACTS}
    return [local_file(name) for kind, _, name in words if kind in _FINDERS and name not in named]


_FINDERS: dict[str, Callable[..., Any]] = {"pairs": find_pairs, "facts": find_facts}
# The function of each kind of measure.
MEASURERS: dict[str, Callable[[Measuring, str], Value | None]] = {
    "held_out": _held_out_loss,
    "under": _loss_under_variant,
    "pair": _pair_accuracy,
    "probe": _probe_score,
    "cls": partial(_probe_score, pool="cls"),
    "pairs": _minimal_pairs,
    "facts": _facts,
    "joint": _joint_loss,
    "gain": _chain_gain,
    "own": _own_measure,
    "log": _log_statistic,
}


def plateau_level(request: StudyRequest, variant: str) -> float | None:
    """The loss of a variant's unigram plateau: frequencies and copying only."""
    plateau = plateau_of(request.recipe(variant), open_stores(request.stores(variant)))
    return None if plateau is None else plateau.level


def _loss(sums: Measured, objective: str) -> Value:
    return Value(means(sums)[objective]["loss"], sums[objective]["count"])


def _base(request: StudyRequest) -> Recipe:
    return request.study.recipe_of(Variant("base", "without changes"), size=request.size)


def _masks_differ(request: StudyRequest) -> bool:
    """Whether the base masks tokens, and any variant's held-out masks differ from its."""
    base, recipes = _base(request), [request.recipe(one.name) for one in request.study.variants]
    if not any(part.language_model == "masked" for part in base.objectives):
        return False
    # Copies and redrawn pairs only matter between epochs; held-out text has one.
    masks = [
        (one.masking, replace(one.corruption, copies=0, redraw="masks"))
        for one in (base, *recipes)
        if any(part.language_model == "masked" for part in one.objectives)
    ]
    return any(other != masks[0] for other in masks)
