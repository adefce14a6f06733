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
here, with the same options. A function blocks, reports its progress on standard error
(`progress=False` turns this off), passes each event to `on_event`, and returns an object. Where a
path is expected, give a string, a `Path`, a `Run`, a `Corpus` or a `Model`; for several, give one
or a list. `set` takes `key=value` strings or a dictionary. A mistake raises `UserError`, whose
traceback is short (`CLOZELAB_DEBUG=1` shows all of it). Names not on this page are private.

In a script, put the calls under `if __name__ == "__main__":`. Corpus builds and parallel runs start
processes, and each of these would otherwise run the whole script again.

From version 0.2 on, the old name of a renamed function, option or key still works, with a warning,
for two minor versions.
"""
# The members of each class that are public.
MEMBERS = {
    "Corpus": "open build show check documents show_blocks decode",
    "Model": "fill generate embed score predict probe encode export vocabulary pooling",
    "Recipe": "read override diff to_toml tables parameters warnings",
    "Run": "open recipe machine result losses curves events"
    " resume load finetune predict evaluate export",
    "Study": "result table verdicts page",
    "UserError": "",
}


def page() -> str:
    """The text of the page: functions, groups of options, then classes."""
    names = {name: getattr(clozelab, name) for name in clozelab.__all__}
    functions = [name for name, public in names.items() if hasattr(public, "options")]
    classes = [name for name, public in names.items() if inspect.isclass(public)]
    others = [name for name in names if name not in (*functions, *classes)]
    parts = [HEAD, "## Functions", *(_function(name, names[name]) for name in functions)]
    parts += [f"### {name}\n\n{inspect.getdoc(names[name])}" for name in others]
    groups = {
        option.group: None for name in functions for option in options(names[name]) if option.group
    }
    parts += ["## Options of several functions", *(_group(names, group) for group in groups)]
    parts += ["## Objects", *(_class(name, names[name]) for name in classes)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _function(name: str, function: Any) -> str:
    own = [option for option in options(function) if option.group is None]
    groups = {option.group: None for option in options(function) if option.group}
    result = inspect.signature(function).return_annotation
    positionals = ", ".join(_word(option) for option in own if option.positional)
    lines = [
        f"### {name}",
        "",
        f"`{name}({positionals}{', ' if positionals else ''}…) -> {result}`",
        "",
    ]
    lines += [summary(function), "", *map(_line, own)]
    lines += [f"- [{group.__name__}](#{group.__name__.lower()})" for group in groups]
    return "\n".join(lines)


def _word(option: Option) -> str:
    return option.name if option.default is inspect.Parameter.empty else f"{option.name}=…"


def _line(option: Option) -> str:
    must = " (must be given)" if option.default is inspect.Parameter.empty else ""
    choices = f" One of {', '.join(option.choices)}." if option.choices else ""
    return f"- `{option.name}`{must}: {option.help}{'.' if choices else ''}{choices}"


def _group(names: dict[str, Any], group: type) -> str:
    """The section of a dataclass of options, the same for every function that takes it."""
    takers = [options(public) for public in names.values() if hasattr(public, "options")]
    own = next(choices for choices in takers if any(option.group is group for option in choices))
    says = " ".join((inspect.getdoc(group) or "").split())
    lines = [_line(option) for option in own if option.group is group]
    return "\n".join([f"### {group.__name__}", "", says, "", *lines])


def _class(name: str, kind: type) -> str:
    lines = [f"### {name}", "", inspect.getdoc(kind) or "", ""]
    for public in MEMBERS[name].split():
        member = inspect.getattr_static(kind, public)
        call = "(…)" if inspect.isfunction(member) or isinstance(member, classmethod) else ""
        lines.append(f"- `{public}{call}`: {' '.join((inspect.getdoc(member) or '').split())}")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
