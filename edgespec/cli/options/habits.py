"""Names of commands, options and models in other programs, and the answers to users who type them."""

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
_PROMPT = ("p", "prompt")
_TEMPLATE = ("cnv", "conversation", "no-cnv", "no-conversation")

_SERVER = "'edgespec serve' is the server, which runs until Ctrl-C"
_COMMANDS = {
    "models": "ls",
    **dict.fromkeys(("generate", "complete", "cli"), "run"),
    "search": "ls --catalog",
}


def command_hint(name: str, known: Collection[str], group: str = "") -> str:
    """The hint for an unknown command of a group, by default of `edgespec` itself."""
    if not group and name in ("server", "start", "stop", "ps"):
        return _SERVER
    near = difflib.get_close_matches(name.lower(), known, n=1)
    program = f"edgespec {group}".rstrip()
    if found := ("" if group else _COMMANDS.get(name.lower())) or "".join(near):
        return f"did you mean '{program} {found}'?"
    return f"the commands are {', '.join(known)}" if group else "'edgespec --help' lists the commands"


def usage_hint(error: click.UsageError) -> str:
    """The hint for an unknown option or argument; empty if there is nothing better than to read the command's help."""
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
    if option := options.get(f"--{ELSEWHERE.get(word, word)}"):
        return f"did you mean {min(option.opts, key=len)} {option.metavar or ''}".rstrip() + "?"
    if word in _HUB:
        return f"give a model of the hub as {'-m ' if '-m' in options else ''}hf:OWNER/NAME:QUANT"
    if answers and word in _PROMPT:
        return f'the prompt needs no option: edgespec {command.name} "PROMPT"'
    if word in _TEMPLATE and "--chat" in options:
        return "--raw completes the prompt verbatim, --chat sends it as a user message"
    if isinstance(command, click.Group) and word in ("m", "p"):
        return 'options follow a command: edgespec run -m MODEL "PROMPT"'
    return ""


def looks_like_model(prompt: str) -> bool:
    """Whether a prompt is probably the model, which ollama takes first. Raises UsageError as `catalogue` does."""
    from edgespec.models.names.catalog import near
    from edgespec.models.names.source import NAMES

    if not re.fullmatch(r"\S+", prompt):
        return False
    return prompt in NAMES or "gguf" in prompt.lower() or bool(near(prompt.replace(":", "-")))
