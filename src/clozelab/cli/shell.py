"""Completion: a script that tells a shell the commands and their options."""

from __future__ import annotations

from typing import Literal

from clozelab.options import command, options

_BASH = """\
_clozelab() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}}
    [ "$command" = corpus ] && [ "$COMP_CWORD" -gt 2 ] && command="corpus ${{COMP_WORDS[2]}}"
    local words
    case "$command" in
{cases}
        *) words="{commands}" ;;
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"; fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _clozelab clozelab
"""


@command
def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script that completes commands and options: put it where your shell reads it.

    For bash and zsh: eval "$(clozelab completion bash)"; for fish: clozelab completion fish |
    source.

    Args:
        shell: the shell it is for
    """
    from clozelab.cli.commands import COMMANDS

    words = {
        name: [each.flag for each in options(one.call) if not each.positional and each.typed]
        for name, one in COMMANDS.items()
    }
    words["corpus"] = [name.split()[1] for name in words if name.startswith("corpus ")]
    print(_fish(words) if shell == "fish" else _bash(words, zsh=shell == "zsh"), end="")


def _bash(words: dict[str, list[str]], *, zsh: bool) -> str:
    cases = [f'        "{name}") words="{" ".join(more)}" ;;' for name, more in words.items()]
    commands = " ".join(name for name in words if " " not in name)
    head = "autoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    return head + _BASH.format(cases="\n".join(cases), commands=commands)


def _fish(words: dict[str, list[str]]) -> str:
    lines = []
    for name, more in words.items():
        last = name.split()[-1]
        if " " not in name:
            lines.append(f"complete -c clozelab -n __fish_use_subcommand -a {name}")
        for word in more:
            what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f'complete -c clozelab -n "__fish_seen_subcommand_from {last}" {what}')
    return "\n".join(lines) + "\n"
