"""Write docs/api.md from the docstrings of the public names: `python tools/api_docs.py`."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
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
path is expected, give a string, a `Path`, a `Run`, a `Corpus` or a `Model`; for several, give one,
a list or an iterator. `set` takes `key=value` strings or a dictionary, and `grid` a dictionary of
lists. None is the same as leaving an option out, and `json` changes only what a command prints. A
mistake raises `UserError`, whose traceback is short (`CLOZELAB_DEBUG=1` shows all of it). Ctrl-C
raises `KeyboardInterrupt`, whose message says how to continue. Names not on this page are private.

A script that registers parts of its own puts its calls under `if __name__ == "__main__":`. Corpus
builds and parallel runs start processes, and these run such a script again to get its parts.

From version 0.2 on, the old name of a renamed function, option or key still works, with a warning,
for two minor versions.
"""
# The members of each class that are public.
MEMBERS = {
    "Corpus": "open build show check documents show_blocks decode",
    "Model": "place step recipe tokenizer module fill generate embed score predict probe encode"
    " export vocabulary pooling",
    "Recipe": "read override diff to_toml tables parameters warnings",
    "Run": "open path recipe machine result losses curves events"
    " resume load finetune predict evaluate export",
    "Study": "result table verdicts page",
    "UserError": "",
}
# What functions return besides these, and the attributes that are public.
RESULTS = {
    "models.fill": {"Filled": "text blanks as_json", "TokenPrediction": "token number probability"},
    "models.generate": {"Generated": "prompt text tokens steps as_json"},
    "models.embed": {
        "Vectors": "vectors starts offsets cut longest",
        "Neighbours": "query neighbours vectors",
        "Neighbour": "line text cosine",
    },
    "scoring.texts": {
        "TextScores": "texts log_likelihood perplexity lines",
        "ScoredText": "text tokens words log_likelihood perplexity",
        "ScoredPiece": "text start stop log_likelihood surprisal",
    },
    "scoring.pairs": {"PairScores": "all paradigms phenomena over_paradigms outcomes as_json"},
    "scoring.facts": {"FactScores": "all relations over_relations as_json"},
    "scoring.probe": {
        "Probes": "results scores",
        "ProbeResult": "task metrics scores errors layer layers trained scored right",
    },
    "pretraining.matrix": {
        "MaskMatrix": "models masks cells pairs as_json",
        "MatrixCell": "loss accuracy error accuracy_error targets",
    },
    "finetuning.examples": {
        "Class": "label probabilities",
        "Number": "value",
        "Picked": "label probabilities",
        "Tags": "tags probabilities",
        "Span": "text score null best",
        "Clusters": "clusters",
    },
    "api.predicting": {"Predictions": "lines", "PassageAnswer": "text passage span top"},
    "api.vocabularies": {
        "VocabularySummary": "place kind specials figures used candidates",
        "VocabularyChange": "path before after added load",
    },
    "models.vocabulary": {"VocabularyFigures": "tokens parameters in_tables bytes text"},
    "text.usage": {"Tokenization": "tokens words unknown tokens_per_word"},
    "text.extension": {"NewWord": "word text count pieces known saves"},
    "api.corpora": {"CorpusSummary": "path name bytes splits facts"},
    "api.recipes": {"MaskedText": "epochs tokenizer", "BlockSample": "texts blocks plan"},
    "diagnosis.result": {
        "Diagnosis": "verdict healthy findings state losses unknown",
        "CheckResult": "level title evidence cause remedy check",
    },
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
    parts += ["## Objects", *(_class(name, names[name], MEMBERS[name]) for name in classes)]
    parts += ["## Results", "What functions return besides these objects. Predictions are one of"]
    parts[-1] += " `Class` … `Clusters` for each example."
    for module, kinds in RESULTS.items():
        home = import_module(f"clozelab.{module}")
        parts += [_class(kind, getattr(home, kind), members) for kind, members in kinds.items()]
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


def _class(name: str, kind: type, members: str) -> str:
    lines = [f"### {name}", "", inspect.getdoc(kind) or "", ""]
    fields = _fields(kind)
    for public in members.split():
        if public in fields:
            lines.append(f"- `{public}`: {fields[public]}")
            continue
        member = inspect.getattr_static(kind, public)
        call = "(…)" if inspect.isfunction(member) or isinstance(member, classmethod) else ""
        doc = inspect.getdoc(getattr(member, "func", member))  # of a cached property, its function
        lines.append(f"- `{public}{call}`: {' '.join((doc or '').split())}")
    return "\n".join(lines)


def _fields(kind: type) -> dict[str, str]:
    """The fields of a class: the comment behind each in the source, and its type."""
    fields = {}
    pattern = r"^    (\w+): ([^=#]+?)(?: = [^#]+?)?(?:  # (.+))?$"
    for name, annotation, comment in re.findall(pattern, inspect.getsource(kind), re.MULTILINE):
        fields[name] = f"{comment} (`{annotation}`)" if comment else f"`{annotation}`"
    return fields


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
