"""Completion: a script that tells a shell the commands, their options, and the words of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from clozelab.options import command, options, summary

if TYPE_CHECKING:
    from clozelab.cli.commands import Command

_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""
_BASH = """\
_clozelab() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local command=${{COMP_WORDS[1]}} words
    case "$command" in
        {groups}) [ "$COMP_CWORD" -gt 2 ] && command="$command ${{COMP_WORDS[2]}}" ;;
    esac
    [ "$COMP_CWORD" -eq 1 ] && command=
    case "$command" in
{cases}
    esac
    case "$command $before" in
{choices}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _clozelab clozelab
"""
_FISH = """\
function __clozelab_command
    set -l words (commandline -opc)
    if contains -- "$words[2]" {groups}; and test -n "$words[3]"
        echo "$words[2] $words[3]"
    else
        echo "$words[2]"
    end
end
"""


@command
def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a shell script that completes commands and options.

    For bash and zsh: eval "$(clozelab completion bash)"; for fish: clozelab completion fish |
    source.

    Args:
        shell: the shell it is for
    """
    from clozelab.cli.commands import COMMANDS

    script = _fish(COMMANDS) if shell == "fish" else _bash(COMMANDS)
    print(_ZSH + script if shell == "zsh" else script, end="")


def _bash(commands: Mapping[str, Command]) -> str:
    words, values = _commands(commands), dict[str, Iterable[str]]()
    groups = "|".join(filter(None, words))
    for name, each_command in commands.items():
        typed = [each for each in options(each_command.call) if each.typed]
        words[name] = [flag for each in typed if not each.positional for flag in each.flags]
        for each in typed:  # the words of an option follow it, those of an argument the command
            if each.choices:
                values[f"{name} {name if each.positional else each.flag}"] = each.choices
    cases, choices = (
        "\n".join(f'        "{case}") words="{" ".join(each)}" ;;' for case, each in table.items())
        for table in (words, values)
    )
    return _BASH.format(groups=groups, cases=cases, choices=choices)


def _fish(commands: Mapping[str, Command]) -> str:
    lines = [_FISH.format(groups=" ".join(filter(None, _commands(commands))))]

    def add(name: str, what: str, meaning: str = "") -> None:
        said = meaning.partition("\n")[0].replace("\\", "").replace("'", "\\'")
        lines.append(
            f"complete -c clozelab -n 'string match -q -- \"{name}\" (__clozelab_command)'"
            f" {what} -d '{said}'\n"
        )

    for group, names in _commands(commands).items():
        for name in names:
            full = f"{group} {name}".strip()
            add(group, f"-f -a {name}", summary(commands[full].call) if full in commands else "")
    for name, each_command in commands.items():
        for each in options(each_command.call):
            values = f"-f -a '{' '.join(each.choices or ())}'"
            if each.typed and not each.positional:
                alone = each.kind is bool or each.bare
                value = "" if alone else f"-r {values}" if each.choices else "-r"
                for flag in each.flags:
                    add(name, f"-l {flag[2:]} {value}", each.help)
            elif each.choices:
                add(name, values)
    return "".join(lines)


def _commands(commands: Mapping[str, Command]) -> dict[str, list[str]]:
    """The words that may come first, and those that come after the first of two."""
    groups: dict[str, list[str]] = {"": []}
    for name in commands:
        group, _, last = name.rpartition(" ")
        if group and group not in groups:
            groups[""].append(group)
        groups.setdefault(group, []).append(last)
    return groups
