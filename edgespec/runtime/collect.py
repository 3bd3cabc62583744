"""The target's own answers to many prompts, as training data for a draft: it learns from the text that it has to draft.

JSON lines in the format of fine-tuning tools: `messages` of a chat, or `prompt` and `completion`. Each line is written
as soon as it is complete, so a killed program loses at most one answer, and a second run resumes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgespec.bench.suites import Item
from edgespec.cancel import CancelFlag
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError, UsageError
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request


def collect(
    llm: Runtime,
    items: Sequence[Item],
    out: Path,
    *,
    chat: bool,
    max_tokens: int,
    sampling: SamplingSettings,
    seed: int,
    progress: Callable[[str, float], None] = lambda what, done: None,
    cancel: CancelFlag | None = None,
) -> tuple[int, list[str]]:
    """Answer the items that `out` has no answer to; returns how many these were, and which could not be asked.

    Of several turns only the first is asked. Raises EdgespecError if the file cannot be written, UsageError if it holds
    something else.
    """
    cancel = cancel or CancelFlag()
    known, kept = _begun(out)
    missing = [item for item in items if item.id not in known]
    problems: list[str] = []
    n_answered = 0
    try:
        with out.open("ab") as file:
            file.truncate(len(kept))
            if kept and not kept.endswith(b"\n"):
                file.write(b"\n")
            for number, item in enumerate(missing):
                if cancel.is_set():
                    break
                progress(f"answering {number + 1} of {len(missing)}", number / len(missing))
                request = Request(
                    prompt="" if chat else item.prompt,
                    messages=(Message("user", item.prompt),) if chat else (),
                    max_tokens=max_tokens,
                    seed=seed,
                    sampling=sampling,
                )
                try:
                    events = list(llm.answer(request, cancel))
                except UsageError as error:
                    problems.append(f"{item.id}: {error.what}")
                    continue
                if events[-1].finish_reason not in ("stop", "length"):
                    break
                file.write(_line(item, "".join(event.text for event in events), chat=chat))
                file.flush()
                n_answered += 1
    except OSError as error:
        raise EdgespecError(f"{out} cannot be written", why=error.strerror or str(error)) from error
    return n_answered, problems


def _line(item: Item, answer: str, *, chat: bool) -> bytes:
    row: dict[str, Any] = {"id": item.id}
    if chat:
        row["messages"] = [{"role": "user", "content": item.prompt}, {"role": "assistant", "content": answer}]
    else:
        row |= {"prompt": item.prompt, "completion": answer}
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _begun(out: Path) -> tuple[set[str], bytes]:
    """The ids in a file that `collect` began, and the file without the partial last line of a killed program."""
    try:
        data = out.read_bytes()
    except FileNotFoundError:
        return set(), b""
    except OSError as error:
        raise EdgespecError(f"{out} cannot be read", why=error.strerror or str(error)) from error
    known = set()
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            known.add(str(json.loads(line)["id"]))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and not line.endswith(b"\n"):
                return known, data[: -len(line)]
            raise UsageError(
                f"{out} was not written by draft collect", why=f"line {number}", hint="use another file name"
            ) from error
    return known, data
