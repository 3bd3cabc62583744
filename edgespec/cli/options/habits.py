"""Hints for users who type the names of commands, options and models in other programs, or misspell a name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

import click

ELSEWHERE = {
    "n-predict": "max-tokens",
    "num-predict": "max-tokens",
    "max-new-tokens": "max-tokens",
    "n-ctx": "ctx-size",
    "num-ctx": "ctx-size",
    "context-length": "ctx-size",
    "n-gpu-layers": "gpu-layers",
    "num-gpu": "gpu-layers",
    "num-thread": "threads",
    "temperature": "temp",
    "repetition-penalty": "repeat-penalty",
    "model-draft": "draft-model",
    "draft-max": "spec-draft-n-max",
    "system-prompt": "system",
    "sys": "system",
}
"""Names of options in llama.cpp, ollama and transformers."""

_HUB = ("hf", "hfr", "hf-repo", "hff", "hf-file")
_TEMPLATE = ("cnv", "conversation", "no-cnv", "no-conversation")
_COMMANDS = {
    **dict.fromkeys(("list", "ls", "models"), ("ls", "list")),
    **dict.fromkeys(("rm", "remove", "delete"), ("rm", "clear")),
    **dict.fromkeys(("info", "cat"), ("show",)),
    **dict.fromkeys(("generate", "complete", "cli"), ("run",)),
    "download": ("pull",),
    "search": ("ls --catalog",),
}
"""Commands of other programs. The first command of each that a group has is meant."""


def command_hint(name: str, known: Collection[str], group: str = "") -> str:
    """Return the hint for an unknown command of a group, by default of `edgespec` itself."""
    if not group and name in ("server", "start", "stop", "ps"):
        return "'edgespec serve' is the server, which runs until Ctrl-C"
    meant = (command for command in _COMMANDS.get(name.lower(), ()) if command.partition(" ")[0] in known)
    if found := next(meant, "") or _nearest(name.lower(), known):
        return f"did you mean '{f'edgespec {group}'.rstrip()} {found}'?"
    return f"the commands are {', '.join(known)}" if group else "'edgespec --help' lists the commands"


def usage_hint(error: click.UsageError) -> str:
    """Return the hint for an unknown option or argument, or "" if only the command's help can explain more."""
    if error.ctx is None:
        return ""
    command = error.ctx.command
    answers = command.name in ("run", "chat", "tui")
    if answers and "unexpected extra argument" in error.message:
        return f'the model is chosen with -m, and the prompt is quoted: edgespec {command.name} -m MODEL "PROMPT"'
    if not isinstance(error, click.NoSuchOption):
        return ""
    word = error.option_name.lstrip("-").lower().replace("_", "-")
    options = {name: param for param in command.params if isinstance(param, click.Option) for name in param.opts}
    if word in _HUB:
        return f"give a model of the hub as {'-m ' if '-m' in options else ''}hf:OWNER/NAME:QUANT"
    if answers and word in ("p", "prompt"):
        return f'the prompt needs no option: edgespec {command.name} "PROMPT"'
    if word in _TEMPLATE and "--chat" in options:
        return "--raw completes the prompt verbatim, --chat sends it as a user message"
    if isinstance(command, click.Group) and word in ("m", "p"):
        return 'options follow a command: edgespec run -m MODEL "PROMPT"'
    names = {name[2:]: name for name in options if name.startswith("--")}
    names |= {name: f"--{here}" for name, here in ELSEWHERE.items() if f"--{here}" in options}
    if near := names.get(_nearest(word, names)):
        return f"did you mean {near} {options[near].metavar or ''}".rstrip() + "?"
    return ""


def looks_like_model(prompt: str) -> bool:
    """Return whether a prompt is probably the model, which ollama takes first. Raises UsageError as `catalogue`
    does."""
    from edgespec.models.names.catalog import near
    from edgespec.models.names.source import NAMES

    if not re.fullmatch(r"\S+", prompt):
        return False
    return prompt in NAMES or "gguf" in prompt.lower() or bool(near(prompt.replace(":", "-")))


def _nearest(word: str, names: Collection[str]) -> str:
    """Return the most similar name, or "" if none is similar."""
    return word if word in names else next(iter(difflib.get_close_matches(word, names, n=1)), "")
