"""The chat templates of a model: those of its file, or others in their place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import UsageError, told_as
from edgespec.gguf_file.header import Header

KEY = "tokenizer.chat_template"  # of the default template; those with names have the name after a dot
TOOL_USE = "tool_use"
MOST_BYTES = 1 << 20  # of a file; published templates have up to 30,000
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
KNOWN = {"chatml": CHATML}


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """The Jinja sources of chat templates; "" for none.

    Attributes:
        default: For requests without tools.
        tool_use: For requests with tools, if they have a template of their own.
    """

    default: str = ""
    tool_use: str = ""

    def of(self, *, has_tools: bool) -> str:
        """Return the template for requests with or without tools."""
        return (has_tools and self.tool_use) or self.default


def named_templates(header: Header) -> dict[str, str]:
    """Return the templates of a file that have names, which are not the default one."""
    start = f"{KEY}."
    return {
        key.removeprefix(start): value
        for key, value in header.metadata.items()
        if key.startswith(start) and isinstance(value, str)
    }


def chat_templates(header: Header, name: str | None = None, file: str | None = None) -> ChatTemplates:
    """Return the templates of a model: the template `name` of its file or a known one, or that in `file`, or else those
    of its file. Raises UsageError."""
    if file is not None:
        return ChatTemplates(_text_of(Path(file).expanduser()))
    own, default = named_templates(header), header.metadata.get(KEY, "")
    if name is None:
        return ChatTemplates(default if isinstance(default, str) else "", own.get(TOOL_USE, ""))
    found = own.get(name) or KNOWN.get(name)
    if found is None:
        names = ", ".join([*own, *(known for known in KNOWN if known not in own)])
        raise UsageError(
            f"{header.path.name} has no chat template {name!r}",
            hint=f"choose from {names}, or name a file with `chat_template_file`",
        )
    return ChatTemplates(found)


def _text_of(file: Path) -> str:
    """Return the template in a file. Raises UsageError."""
    with told_as(UsageError, f"cannot read the chat template {file}"), file.open("rb") as data:
        found = data.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise UsageError(f"the chat template {file} is too large", why=f"it has more than {MOST_BYTES:,} bytes")
    try:
        text = found.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the chat template {file} is not text in UTF-8", why=str(error)) from error
    if not text.strip():
        raise UsageError(f"the chat template {file} is empty")
    return text
