"""A recipe as something to look at: its tables, its parts with their parameters, its step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from clozelab.cli.views import Values, facts, table
from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.config.toml import written

if TYPE_CHECKING:
    from clozelab.text.store.mixture import MixtureShare


def shown(
    recipe_and_mixture: tuple[Recipe, Sequence[MixtureShare]] | None, values: Values
) -> Iterator[RenderableType]:
    """The recipes there are; or one, for people or as a file, and the corpora it would read."""
    if recipe_and_mixture is None:
        names = recipes.names()
        width = max(map(len, names)) + 2
        for name in names:
            yield Text.assemble((f"{name:{width}}", "bold"), recipes.read(name).title)
        return
    recipe, parts = recipe_and_mixture
    if values.get("toml"):
        yield recipe.to_toml()
        return
    yield resolved(recipe, extends=recipes.chain(values["recipe"])[1:])
    if parts:
        yield _mixture(recipe, parts)


def resolved(recipe: Recipe, *, extends: Sequence[str] = ()) -> Group:
    """The resolved recipe, its parts with their parameters, and what a step and the run hold."""
    head = Text.assemble((recipe.name, "bold"), "  ", recipe.title)
    if extends:
        head.append(f"\nextends {', which extends '.join(extends)}", style="dim")
    return Group(head, _settings(recipe), _parameters(recipe), facts(_facts(recipe)))


def difference(rows: Sequence[tuple[str, Any, Any]], values: Values) -> Iterator[RenderableType]:
    """What differs between two recipes, key by key."""
    a, b = Path(values["a"]).stem, Path(values["b"]).stem  # a name, or a file
    if not rows:
        yield f"{a} and {b} are the same"
        return
    cells = ((key, _cell(left), _cell(right)) for key, left, right in rows)
    yield table("key", a, b, rows=cells)


def phases(recipe: Recipe) -> list[tuple[int, float, int]]:
    """The run's phases: (block length, share of the steps, tokens a step)."""
    schedule = recipe.schedule
    full = schedule.batch_size * recipe.blocks.length
    by_tokens = schedule.fill == "tokens"
    return [
        (length, share, full if by_tokens else schedule.batch_size * length)
        for length, share in schedule.phases or ((recipe.blocks.length, 1.0),)
    ]


def _mixture(recipe: Recipe, parts: Sequence[MixtureShare]) -> Group:
    """How often a run of the recipe reads each corpus."""
    total = sum(tokens * share for _, share, tokens in phases(recipe)) * recipe.schedule.total
    lines = table("corpus", "tokens", "weight", "share", "epochs", "epochs by size")
    for column in lines.columns[1:]:
        column.justify = "right"
    for part in parts:
        epochs = f"{part.epochs(total):,.2f}"
        alone = f"{part.epochs(total) / part.oversampling:,.2f}"
        numbers = [f"{part.tokens:,}", f"{part.weight:g}", f"{part.share:.1%}", epochs, alone]
        lines.add_row(part.path, *numbers)
    more = (part for part in parts if part.oversampling > 1.005)
    said = (
        f"{part.path}: {part.oversampling:.2f} times as often as in proportion to its size"
        for part in more
    )
    return Group(lines, *said)


def _settings(recipe: Recipe) -> Table:
    """Every table of the recipe, resolved."""
    lines = table("", "", "")
    lines.columns[0].style, lines.show_header = "bold", False
    for slot, parts in recipe.tables().items():
        for part in parts if isinstance(parts, list) else [parts]:
            for number, (key, value) in enumerate(part.items()):
                lines.add_row("" if number else slot, key, _cell(value))
    return lines


def _parameters(recipe: Recipe) -> Tree:
    """The parts as a tree, each with what it and everything under it train."""
    counts = recipe.parameters()
    tree = Tree(_counted("parameters", counts.values()))
    nodes = {"": tree}
    for key in counts:
        words = key.split(".")
        for depth, word in enumerate(words):
            above, path = ".".join(words[:depth]), ".".join(words[: depth + 1])
            if path not in nodes:
                under = [n for k, n in counts.items() if f"{k}.".startswith(f"{path}.")]
                nodes[path] = nodes[above].add(_counted(word, under))
    return tree


def _facts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What follows from the recipe alone, whatever the corpus."""
    unit = "words" if "words" in recipe.blocks.provides else "tokens"
    steps, total = recipe.schedule.total, 0.0
    for length, share, tokens in phases(recipe):
        total += tokens * share * steps
        where = f" (length {length}, {share:.0%} of the steps)" if share < 1 else ""
        yield f"{unit} a step", f"up to {tokens:,}{where}"
    yield f"{unit} in all", f"up to {total / 1e9:,.1f} billion in {steps:,} steps"
    rate = getattr(recipe.masking, "mask_rate", None)
    if rate is not None:
        yield "predicted", f"about {rate * recipe.blocks.length:.0f} in a full block"
    copies = recipe.corruption.copies
    if "targets" in recipe.masking.provides:
        yield "masks", f"static, {copies} variants" if copies else "dynamic, fresh each epoch"


def _counted(name: str, counts: Iterable[int]) -> Text:
    return Text.assemble(name, " ", (f"{sum(counts):,}", "cyan"))


def _cell(value: Any) -> Text:
    return Text("–", style="dim") if value is None else Text(written(value))
