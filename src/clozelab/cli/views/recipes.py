"""A recipe as something to look at: its tables, its parts with their parameters, its step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.config.toml import written


def show(recipe: Recipe, *, extends: Sequence[str] = ()) -> RenderableType:
    """The resolved recipe, its parts with their parameters, and what a step and the run hold."""
    head = Text.assemble((recipe.name, "bold"), "  ", recipe.title)
    if extends:
        head.append(f"\nextends {', which extends '.join(extends)}", style="dim")
    return Group(head, _settings(recipe), _parameters(recipe), _facts(recipe))


def difference(a: Recipe, b: Recipe) -> RenderableType:
    """What differs between two recipes, key by key."""
    found = recipes.difference(a, b)
    if not found:
        return Text(f"{a.name} and {b.name} are the same")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("key", a.name, b.name):
        table.add_column(column, overflow="fold")
    slot = ""
    for key, left, right in found:
        if key.split(".")[0] != slot:
            table.add_section()
            slot = key.split(".")[0]
        table.add_row(Text(key), _cell(left), _cell(right))
    return table


def phases(recipe: Recipe) -> list[tuple[int, float, int]]:
    """The run's phases: (block length, share of the steps, tokens a step)."""
    schedule = recipe.schedule
    found = schedule.phases or ((recipe.blocks.length, 1.0),)
    full = schedule.sequences * recipe.blocks.length
    by_tokens = schedule.fill == "tokens"
    return [
        (length, share, full if by_tokens else schedule.sequences * length)
        for length, share in found
    ]


def _settings(recipe: Recipe) -> Table:
    """Every table of the recipe, resolved."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column(overflow="fold")
    for slot, found in recipe.tables().items():
        for one in found if isinstance(found, list) else [found]:
            name = slot
            for key, value in one.items():
                table.add_row(Text(name), Text(key), _cell(value))
                name = ""
            table.add_section()
    return table


def _parameters(recipe: Recipe) -> Tree:
    """The parts as a tree, each with what it and everything under it train."""
    counts = recipe.parameters()
    tree = Tree(_counted("parameters", counts.values()))
    nodes = {"": tree}
    for key in counts:
        words = key.split(".")
        for depth in range(1, len(words) + 1):
            path = ".".join(words[:depth])
            if path not in nodes:
                under = [n for k, n in counts.items() if f"{k}.".startswith(f"{path}.")]
                nodes[path] = nodes[".".join(words[: depth - 1])].add(
                    _counted(words[depth - 1], under)
                )
    return tree


def _facts(recipe: Recipe) -> Table:
    """What follows from the recipe alone, whatever the corpus."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    unit = "words" if "words" in recipe.blocks.provides else "tokens"
    steps, total = recipe.schedule.total, 0.0
    for length, share, tokens in phases(recipe):
        total += tokens * share * steps
        where = f" (length {length}, {share:.0%} of the steps)" if share < 1 else ""
        table.add_row(f"{unit} a step", f"up to {tokens:,}{where}")
    table.add_row(f"{unit} in all", f"up to {total / 1e9:,.1f} billion in {steps:,} steps")
    rate = getattr(recipe.masking, "rate", None)
    if rate is not None:
        table.add_row("predicted", f"about {rate * recipe.blocks.length:.0f} in a full block")
    copies = recipe.corruption.copies
    if "targets" in recipe.masking.provides:
        kind = f"static, {copies} variants" if copies else "dynamic, fresh each epoch"
        table.add_row("masks", kind)
    return table


def _counted(name: str, counts: Iterable[int]) -> Text:
    return Text.assemble(name, " ", (f"{sum(counts):,}", "cyan"))


def _cell(value: Any) -> Text:
    return Text("–", style="dim") if value is None else Text(written(value))
