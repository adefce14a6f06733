"""The slots of a recipe: which parts may fill each, and whether the parts chosen fit together.

Parts declare what they provide and need; what depends on numbers is checked by `_RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clozelab import blocks, encoder, masking, objectives, registry, training
from clozelab.errors import UserError
from clozelab.nearest import listed
from clozelab.text.tokenizers import TOKENIZERS

if TYPE_CHECKING:
    from clozelab.config.recipe import Recipe

SLOTS: dict[str, dict[str, Any]] = {
    "tokenizer": TOKENIZERS,
    "blocks": blocks.PARTS,
    "masking": masking.PARTS,
    "encoder": encoder.PARTS,
    "objectives": objectives.PARTS,
    "optimiser": training.PARTS,
    "corruption": {"replace": masking.Corruption},
    "schedule": {"steps": training.Schedule},
}
USUAL = {"corruption": "replace", "schedule": "steps"}  # the part of a table without `use`
for _slot, _table in SLOTS.items():
    registry.opened(_slot, _table)
TABLES = (
    *("tokenizer", "blocks", "masking", "corruption"),
    *("encoder", "objectives", "optimiser", "schedule"),
)
_PROVIDERS = ("tokenizer", "blocks", "masking", "encoder")
_ALPHABET = 261  # how many characters blocks `words` tells apart


def use(slot: str, part: object) -> str:
    """The name under which a part is registered in its slot."""
    for name, kind in SLOTS[slot].items():
        if kind is type(part):
            return name
    name = type(part).__name__
    raise UserError(f"{slot}: {name} is not registered; clozelab.register({slot!r}, …, {name})")


def modules(recipe: Recipe) -> list[str]:
    """The modules outside the package that register parts of the recipe."""
    return registry.modules((slot, use(slot, part)) for slot, part in _parts(recipe))


def check(recipe: Recipe) -> None:
    """Refuse a recipe whose parts do not fit together."""
    if not recipe.objectives:
        names = listed(SLOTS["objectives"])
        raise UserError(f"{recipe.name}: objectives are missing; list at least one of {names}")
    kinds = [use("objectives", part) for part in recipe.objectives]
    for number, kind in enumerate(kinds):
        if kind in kinds[:number]:
            raise UserError(f"{recipe.name}: objective {kind} is listed twice; list it once")
    provided = frozenset[str]().union(*(getattr(recipe, slot).provides for slot in _PROVIDERS))
    for slot, part in _parts(recipe):
        for need in sorted(getattr(part, "needs", frozenset()) - provided):
            raise UserError(_unmet(recipe, slot, use(slot, part), need=need))
    for problem in (problem for rule in _RULES for problem in rule(recipe)):
        raise UserError(f"{recipe.name}: {problem}")


def warnings(recipe: Recipe) -> list[str]:
    """Sentences about settings that are allowed but are probably mistakes."""
    return [*_small_caps(recipe), *_equal_twins(recipe), *_idle_final(recipe)]


def _idle_final(recipe: Recipe) -> Iterator[str]:
    # Not refused, as `power` is: runs were recorded with it.
    schedule = recipe.schedule
    if schedule.decay == "constant" and schedule.final not in (0, 1):
        yield (
            f"{recipe.name}: schedule.final = {schedule.final:g} has no effect with"
            ' schedule.decay = "constant"; leave it out, or set schedule.decay=linear'
        )


def _small_caps(recipe: Recipe) -> Iterator[str]:
    cap, rate = getattr(recipe.masking, "cap", None), getattr(recipe.masking, "mask_rate", 0.0)
    length = recipe.blocks.length
    if cap is not None and cap < 0.9 * rate * length:
        yield (
            f"{recipe.name}: masking.cap = {cap} masks only {cap / length:.1%} of a block of"
            f" {length}, not {rate:.0%}; raise it to {math.ceil(rate * length)} or leave it"
            " out"
        )


def _equal_twins(recipe: Recipe) -> Iterator[str]:
    twins = any(part.contrasts for part in recipe.objectives)
    twins = twins and getattr(recipe.blocks, "views", 1) == 1
    drops = any(getattr(recipe.encoder, key, 0) for key in ("dropout", "attention_dropout"))
    if twins and not drops:
        yield (
            f"{recipe.name}: encoder.dropout = 0 makes the two copies of a block the same;"
            " set encoder.dropout=0.1, or use blocks sentence_rows"
        )


def _parts(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    yield from (("objectives", part) for part in recipe.objectives)
    yield from ((slot, getattr(recipe, slot)) for slot in TABLES if slot != "objectives")


def _unmet(recipe: Recipe, slot: str, name: str, *, need: str) -> str:
    """The error for a need that no part of the recipe meets, and the parts that would meet it."""
    who = "objective" if slot == "objectives" else slot
    start = f"{recipe.name}: {who} {name} needs {need}"
    for other in _PROVIDERS:
        able = [kind for kind, part in SLOTS[other].items() if need in part.provides]
        if able:
            chosen = use(other, getattr(recipe, other))
            return f"{start}, which {other} {chosen} does not provide; use {other} {listed(able)}"
    return f"{start}, which no part provides; choose another {who}"


def _sizes(recipe: Recipe) -> Iterator[str]:
    """Check vocabulary size, block length, window, lengths of phases and segment types."""
    size, specials = recipe.tokenizer.vocabulary, len(recipe.tokenizer.specials)
    if size <= specials:
        yield f"tokenizer.vocabulary = {size} must be more than its {specials} specials"
    length, most = recipe.blocks.length, recipe.encoder.max_positions
    if most is not None and length > most:
        yield (
            f"blocks.length = {length} is more than encoder.positions = {most}; shorten the"
            " blocks or give the encoder more positions"
        )
    window = getattr(recipe.encoder, "window", 0)
    if window > 2 * length:
        yield (
            f"encoder.window = {window} is more than twice blocks.length = {length} and has"
            " no effect; narrow the window or lengthen the blocks"
        )
    lengths = [phase[0] for phase in recipe.schedule.phases]
    longest = max(lengths, default=length)
    if longest != length:
        yield (
            f"schedule.phases end at length {longest} and blocks.length is {length};"
            " make them equal, or set schedule.phases = []"
        )
    form: Any = recipe.blocks
    for each in lengths:
        try:
            replace(form, length=each)
        except UserError as error:
            yield f"schedule.phases have the length {each}, and then {error}"
    provided, types = recipe.blocks.provides, recipe.encoder.segment_types
    segments = 3 if "stream" in provided else 2 if provided & {"next", "order"} else 1
    if types and types < segments:
        yield (
            f"encoder.types = {types} is too few for the segments of blocks"
            f" {use('blocks', recipe.blocks)}; use {segments}, or 0 for none"
        )


def _predictions(recipe: Recipe) -> Iterator[str]:
    """Check that objectives predict what is masked, and do not see it through the encoder."""
    names = [use("objectives", part) for part in recipe.objectives]
    for name, part in zip(names, recipe.objectives, strict=True):
        if part.language_model != "causal":
            if recipe.encoder.causal:
                fix = "set encoder.causal = false or use causal_lm"
                yield f"objective {name} needs both directions; {fix}"
            continue
        if not (recipe.encoder.causal or recipe.schedule.causal):
            fix = (
                "set encoder.causal = true, or choose causal blocks with schedule.causal"
                if "causal_reading" in recipe.encoder.provides
                else "use encoder transformer with causal = true"
            )
            yield f"objective {name} would see its targets; {fix}"
        if part.head_of and part.head_of not in names:
            yield (
                f"objective {name} has the head of {part.head_of}; list {part.head_of} beside it,"
                ' or set its head = "transform"'
            )
        plain = getattr(part, "head", None) == "plain"
        if plain and recipe.encoder.embedding_size != recipe.encoder.hidden_size:
            yield (
                f"objective {name} has a plain head, which needs encoder.embedding_size ="
                f' {recipe.encoder.hidden_size}, the hidden size; or set its head = "transform"'
            )
    decodes = getattr(recipe.encoder, "absolute_positions", "none") == "decoder"
    if decodes and not any(part.language_model == "masked" for part in recipe.objectives):
        yield (
            'encoder.absolute_positions = "decoder" serves masked_lm alone, which is not listed;'
            ' list it, or set "none"'
        )
    predicted = any("targets" in part.needs for part in recipe.objectives)
    if "targets" in recipe.masking.provides and not predicted:
        name = use("masking", recipe.masking)
        yield f"masking {name} masks tokens that no objective predicts; use masking nothing"


def _directions(recipe: Recipe) -> Iterator[str]:
    """Check that some objective learns from causally read blocks, and some from the others."""
    schedule = recipe.schedule
    if not schedule.causal:
        return
    key = "schedule.causal reads blocks causally"
    if "causal_reading" not in recipe.encoder.provides:
        name = use("encoder", recipe.encoder)
        yield f"{key}, which encoder {name} cannot; use encoder transformer, or leave it out"
    if recipe.encoder.causal:
        yield f"{key}, but encoder.causal = true already does so for all; leave one of the two out"
    causal = [part.language_model == "causal" for part in recipe.objectives]
    if not any(causal):
        yield f"{key}, but no objective learns from those; list causal_lm, or leave it out"
    if all(causal) or schedule.causal_share(schedule.total) == 1:
        yield (
            f"{key} up to the end, so the encoder would never be bidirectional; list"
            " masked_lm and give it the last steps, or set encoder.causal = true instead"
        )
    for part in recipe.objectives:
        if part.needs_teacher or part.generates_input:
            name = use("objectives", part)
            yield f"{key}, which objective {name} does not support; leave one of the two out"


def _memory(recipe: Recipe) -> Iterator[str]:
    """Check that each row of a step continues that row of the step before, which memory assumes."""
    if not recipe.encoder.memory:
        return
    if "stream" not in recipe.blocks.provides:
        yield (
            f"encoder.memory = {recipe.encoder.memory} needs text in order, which blocks"
            f" {use('blocks', recipe.blocks)} does not provide; use blocks stream_pair,"
            " or set encoder.memory = 0"
        )
    rows = getattr(recipe.blocks, "rows", recipe.schedule.batch_size)
    if rows != recipe.schedule.batch_size:
        yield (
            f"schedule.batch_size = {recipe.schedule.batch_size} and blocks.rows = {rows} must be"
            " equal for the memory to follow its row; set both, or set encoder.memory = 0"
        )
    if recipe.schedule.ramp:
        yield (
            "schedule.ramp changes how many rows a step takes, and the memory follows each row;"
            " set schedule.ramp = [], or set encoder.memory = 0"
        )
    if any(phase[0] != recipe.blocks.length for phase in recipe.schedule.phases):
        yield (
            "schedule.phases change the length of blocks, and the memory is of half a block; set"
            " schedule.phases = [], or set encoder.memory = 0"
        )
    length, reuse = recipe.blocks.length, getattr(recipe.blocks, "reuse", None)
    if reuse != (length + 1) // 2:
        # More would skip text; with less, the memory would hold tokens of the next block.
        yield (
            f"blocks.reuse = {reuse} and the half of blocks.length = {length} must be equal, since"
            f" the memory is of that half; use {(length + 1) // 2}, or set encoder.memory = 0"
        )


def _teaching(recipe: Recipe) -> Iterator[str]:
    """Check that a student lists a layer for each of its own, and predicts what it compares."""
    predicted = {part.language_model for part in recipe.objectives} | {None}
    for part in recipe.objectives:
        name, layers = use("objectives", part), len(getattr(part, "layers", ()))
        if layers and layers != recipe.encoder.layers:
            yield (
                f"objective {name} lists {layers} layers for encoder.layers ="
                f' {recipe.encoder.layers}; list as many, or use start = "spread"'
            )
        if part.compares not in predicted:
            yield f"objective {name} compares what masked_lm predicts; list masked_lm beside it"


def _characters(recipe: Recipe) -> Iterator[str]:
    """Check that convolution filters fit into a word and that every character has an embedding."""
    length = getattr(recipe.blocks, "characters", None)
    filters = getattr(recipe.encoder, "filters", None)
    if filters is None or length is None:
        return
    widest = max(wide for wide, _ in filters)
    if widest > length:
        yield (
            f"encoder.filters reach over {widest} characters and blocks.characters = {length};"
            " give narrower filters or longer words"
        )
    alphabet = getattr(recipe.encoder, "alphabet", _ALPHABET)
    if alphabet < _ALPHABET:
        yield (
            f"encoder.alphabet = {alphabet} is too few for the characters of"
            f" blocks words; use {_ALPHABET}"
        )


def _generators(recipe: Recipe) -> Iterator[str]:
    """Check that generators fit the encoder; without one, detectors must not be given [MASK]."""
    generated = any(part.generates_input for part in recipe.objectives)
    for part in recipe.objectives:
        name = use("objectives", part)
        try:
            part.check_encoder(recipe.encoder)
        except UserError as error:
            yield f"objective {name}: {error}"
        if part.detects_replaced and recipe.corruption.mask and not generated:
            yield (
                f"objective {name} would find [MASK], with corruption.mask ="
                f" {recipe.corruption.mask}; list generator beside it, or set corruption.mask = 0"
            )


def _contrasts(recipe: Recipe) -> Iterator[str]:
    """Check that groups of contrasted rows divide a step, and that they are whole texts."""
    for part in recipe.objectives:
        if not part.contrasts:
            continue
        name, schedule, rows = use("objectives", part), recipe.schedule, part.in_batch
        steps = {schedule.batch_size, *(size for size, _ in schedule.ramp)}
        if rows and (schedule.fill == "tokens" or any(size % rows for size in steps)):
            yield (
                f"objective {name}: in_batch = {rows} must divide schedule.batch_size ="
                f" {schedule.batch_size}, and every step takes as many rows; leave in_batch out for"
                " the whole step"
            )
        if schedule.causal or "stream" in recipe.blocks.provides:
            yield (
                f"objective {name} needs whole texts that are read both ways; use blocks"
                " single_sentences, and leave schedule.causal out"
            )


_RULES = (
    _sizes,
    _predictions,
    _directions,
    _memory,
    _teaching,
    _characters,
    _generators,
    _contrasts,
)
