"""Which draft model belongs to a target, and how it drafts with another vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgespec.drafters.translation import LEAST_OVERLAP, Translation
from edgespec.errors import PairError, UsageError
from edgespec.events import Progress
from edgespec.gguf_file.header import Header
from edgespec.llama.model import Model
from edgespec.models.names.spec import resolve
from edgespec.models.pair.check import overlap_of, vocabulary_difference
from edgespec.settings import AUTO_DRAFT, LoadSettings


def find_draft(
    settings: LoadSettings, header: Header, default: Path | None, progress: Progress, note: Callable[[str], None]
) -> Path | None:
    """The file of the draft that the settings name, also a self-draft; `default` is the target's default draft.

    The draft that "auto" chose is reported to `note`. Raises UsageError, ModelNotFoundError, ModelFileError.
    """
    if settings.draft_n_max > 0 and settings.self_draft is not None:
        from edgespec.models.pair.self_draft import self_draft

        return self_draft(resolve(settings.model).path, settings.self_draft, lambda done: progress("making", done))
    if not settings.uses_draft:
        return None
    if settings.draft_model == AUTO_DRAFT:
        return default or _best_draft(header, note)
    return resolve(settings.draft_model).path if settings.draft_model else default


def _best_draft(header: Header, note: Callable[[str], None]) -> Path | None:
    """The best draft on this machine for the target, if there is one."""
    from edgespec.models.names.local import local_models
    from edgespec.models.pair.suggest import best, suggestions

    found = best(suggestions(header, local_models()))
    if found is None:
        note(f"no model here can draft for {header.path.name}: 'edgespec pair suggest' shows why")
        return None
    note(f"draft model {found.spec}: {found.why}")
    return resolve(found.spec).path


def no_draft_model(settings: LoadSettings, header: Header, missing: str) -> UsageError:
    """The error for a draft model that was requested but is missing."""
    name = header.path.name
    has_none = f"no model here can draft for {name}" if settings.draft_model else f"none comes with {name}"
    get_one = f"'edgespec pull {missing}' downloads one" if missing else "'edgespec pair suggest' lists what would fit"
    return UsageError(
        f"--spec-type {settings.spec_type} needs a draft model",
        why=has_none,
        hint=f"name one (-md MODEL); {get_one}; --spec-type {settings.without_draft} goes without",
    )


def translation_of(target: Model, draft: Model, note: Callable[[str], None]) -> Translation | None:
    """The translation to another vocabulary; None if it is the same. Raises PairError if too few tokens are shared."""
    reason = vocabulary_difference(target.header, draft.header)
    if not reason:
        return None
    translation = Translation.between(target, draft)
    overlap, name = overlap_of(translation.overlap), draft.path.name
    if translation.overlap < LEAST_OVERLAP:
        raise PairError(
            f"{name} cannot draft for {target.path.name}",
            why=f"{overlap}; {reason}",
            hint="use a draft of the same model family, or none (--spec-type none)",
        )
    note(f"{name} has a different vocabulary: it drafts only the tokens that both have ({overlap})")
    return translation
