"""Write docs/api.md from the docstrings of the public names: `python tools/api_docs.py`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import clozelab
from clozelab.options import Option, options, summary

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
HEAD = """\
# The Python side

Made from the docstrings by `tools/api_docs.py`. Every command of the command line is a function
here, with the same options. A function blocks, says what happens on standard error
(`progress=False` keeps it quiet), hands each event to `on_event`, and returns an object. Where a
path is wanted, a string, a `Path`, a `Run`, a `Corpus` or a `Model` will do; where several are, one
or a list. `set` takes `key=value` words or a dictionary. A mistake raises `UserError`, whose
traceback is short (`CLOZELAB_DEBUG=1` shows all of it). What is not on this page is private.

In a script, put the calls under `if __name__ == "__main__":`. Building a corpus and runs side by
side start processes, and each of them would otherwise run the whole script again.

From version 0.2 on, a name, an option or a key that changes is still taken, with a warning, for two
minor versions.
"""
# What objects can do beside what clozelab itself asks of them.
MEMBERS = {
    "Corpus": "open build show check documents show_blocks decode",
    "Model": "fill generate embed predict probe encode export vocabulary",
    "Recipe": "read override diff to_toml tables parameters warnings",
    "Run": "open recipe machine result losses curves events"
    " resume load finetune predict evaluate export",
    "Study": "result table verdicts page",
    "UserError": "",
}


def page() -> str:
    """All public names: functions first, then what they return."""
    names = {name: getattr(clozelab, name) for name in clozelab.__all__}
    functions = [name for name, one in names.items() if hasattr(one, "options")]
    classes = [name for name, one in names.items() if inspect.isclass(one)]
    others = [name for name in names if name not in (*functions, *classes)]
    parts = [HEAD, "## Functions", *(_function(name, names[name]) for name in functions)]
    parts += [f"### {name}\n\n{inspect.getdoc(names[name])}" for name in others]
    groups = {one.group: None for name in functions for one in options(names[name]) if one.group}
    parts += ["## Options of several functions", *(_group(names, one) for one in groups)]
    parts += ["## Objects", *(_class(name, names[name]) for name in classes)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _function(name: str, function: Any) -> str:
    own = [one for one in options(function) if one.group is None]
    groups = {one.group: None for one in options(function) if one.group}
    result = inspect.signature(function).return_annotation
    words = ", ".join(_word(one) for one in own if one.positional)
    lines = [f"### {name}", "", f"`{name}({words}{', ' if words else ''}…) -> {result}`", ""]
    lines += [summary(function), "", *map(_line, own)]
    lines += [f"- [{one.__name__}](#{one.__name__.lower()})" for one in groups]
    return "\n".join(lines)


def _word(one: Option) -> str:
    return one.name if one.default is inspect.Parameter.empty else f"{one.name}=…"


def _line(one: Option) -> str:
    must = " (must be given)" if one.default is inspect.Parameter.empty else ""
    choices = f" One of {', '.join(one.choices)}." if one.choices else ""
    return f"- `{one.name}`{must}: {one.help}{'.' if choices else ''}{choices}"


def _group(names: dict[str, Any], group: type) -> str:
    """The options that a dataclass brings; any function that takes it has them all."""
    takers = [options(one) for one in names.values() if hasattr(one, "options")]
    own = next(found for found in takers if any(one.group is group for one in found))
    says = " ".join((inspect.getdoc(group) or "").split())
    lines = [_line(one) for one in own if one.group is group]
    return "\n".join([f"### {group.__name__}", "", says, "", *lines])


def _class(name: str, kind: type) -> str:
    lines = [f"### {name}", "", inspect.getdoc(kind) or "", ""]
    for each in MEMBERS[name].split():
        member = inspect.getattr_static(kind, each)
        call = "(…)" if inspect.isfunction(member) or isinstance(member, classmethod) else ""
        lines.append(f"- `{each}{call}`: {' '.join((inspect.getdoc(member) or '').split())}")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
