"""The draft near a model that is used although no option names it, and whether it has paid off so far."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from edgespec.files.cache import cache_name, read_cache, write_cache
from edgespec.files.paths import file_facts
from edgespec.gguf_file.header import Header
from edgespec.llama.library import build_id
from edgespec.models.names.model_names import short_spec
from edgespec.models.pair.near import NearDraft, drafts_near
from edgespec.settings import LoadSettings

TRIED = 1000  # steps without a gain, about five answers, after which a draft is no longer loaded


def near_draft(
    settings: LoadSettings,
    target: Header,
    note: Callable[[str], None],
    *,
    untried: bool = False,
    only_heads: bool = False,
) -> NearDraft | None:
    """Return the best draft near the target that the requested drafters can use, or None.

    "auto" leaves out the bundled heads and drafts that did not pay off, unless all are to be considered `untried`.
    `note` is called with the reason, and with the first draft file that cannot be read.
    """
    is_auto, has_noted = settings.spec_type == "auto", False
    for draft in drafts_near(target, bundled=not is_auto):
        if only_heads and not draft.found.kind:
            continue
        if draft.is_broken and not has_noted:
            has_noted = True
            note(f"{draft.path.name} is not used as a draft: {draft.problem}")
        if draft.problem or not _is_wanted(settings, draft):
            continue
        if is_auto and not untried and does_not_pay(settings, target.path, draft.path):
            again = shlex.join(["edgespec", "tune", settings.model, "-md", short_spec(draft.found.spec)])
            note(f"{draft.what} is not used: it did not pay off on this machine ('{again}' measures again)")
            continue
        return draft
    return None


def _is_wanted(settings: LoadSettings, draft: NearDraft) -> bool:
    """True if a requested drafter can use the draft; bundled heads have to be requested by their kind."""
    kind = draft.found.kind or "draft"
    return kind in settings.drafters or ("draft" in settings.drafters and not draft.is_bundled)


def does_not_pay(settings: LoadSettings, target: Path, draft: Path) -> bool:
    """Return whether drafting with these files has gained nothing for long, with this build and these devices."""
    return _steps_without_gain(settings, target, draft) >= TRIED


def remember(settings: LoadSettings, target: Path, draft: Path, steps_without_gain: int) -> None:
    """Count the steps in which a draft gained nothing, for the next starts; 0 means that it gained time."""
    total = steps_without_gain and steps_without_gain + _steps_without_gain(settings, target, draft)
    write_cache(_name(settings, target, draft), str(total))


def _steps_without_gain(settings: LoadSettings, target: Path, draft: Path) -> int:
    saved = read_cache(_name(settings, target, draft)) or ""
    return int(saved) if saved.isdecimal() else 0


def _name(settings: LoadSettings, target: Path, draft: Path) -> str:
    facts = {
        "build": build_id(),
        "files": [file_facts(target), file_facts(draft)],
        "devices": [settings.device, settings.device_draft, *map(str, settings.offload), settings.threads],
    }
    return cache_name("paid", facts)
