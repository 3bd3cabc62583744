"""The candidates of `edgespec tune`: drafters without weights, the MTP block, each draft head and each draft model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.bench.modes import PLAIN, SUFFIX_LENGTHS, Contest, Mode
from edgespec.drafters.registry import REGISTRY
from edgespec.errors import EdgespecError, ModelFileError, UsageError
from edgespec.gguf_file.head_check import kind_of_head, mtp_mismatch
from edgespec.gguf_file.header import Header, read_header
from edgespec.models.names.model_names import name_of, short_spec
from edgespec.models.names.source import HEADS
from edgespec.models.names.spec import resolve
from edgespec.models.pair.near import drafts_near
from edgespec.runtime.model_files import find_draft
from edgespec.settings import AUTO_DRAFT, MTP, LoadSettings, in_order
from edgespec.settings import HEADS as HEAD_KINDS

LENGTHS = (1, 3)  # of fixed drafts of a head or a draft model


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A draft that cannot be measured, and the reason."""

    draft: str
    why: str


@dataclass(frozen=True, slots=True)
class Candidates:
    """The loads of the model to compare, with their modes, and the drafts that cannot be used."""

    contests: tuple[Contest, ...]
    left_out: tuple[LeftOut, ...]


def find_candidates(
    settings: LoadSettings,
    target: Header,
    default: Path | None,
    current: tuple[Path | None, Mode],
    *,
    only_named: bool = False,
) -> Candidates:
    """Return what can draft for the target: the MTP block in its file, the draft that the settings name, its `default`
    draft, and the drafts near it; of these, what uses one of the drafters of `spec_type`. With `only_named`, the named
    draft alone. The `current` mode is among them if its drafters are.

    Each draft is loaded by itself, together with the drafters that need no weights. Raises UsageError if nothing can
    draft, and for a named draft that is not on this machine.
    """
    others = others_of(settings)
    has_block = MTP in settings.drafters and not mtp_mismatch(target)
    drafts, left_out = _drafts(settings, target, default, only_named=only_named)
    contests = []
    if settings.self_draft is not None:
        contests.append(_contest(None, settings.spelling("self"), others, settings))
    if has_block:
        contests.append(_contest(None, MTP, others, settings))
    contests += [_contest(path, kind, others, settings, has_block=has_block) for path, kind in drafts.items()]
    if not contests and others and (settings.spec_type == "auto" or len(others) == len(settings.drafters)):
        contests.append(without_weights(settings))
    if not contests:
        why = f"{target.path.name} has no draft that `spec_type={settings.spec_type}` uses"
        hint = "pass a draft model or a head (`draft_model`), or `spec_type=suffix`"
        raise UsageError("there is nothing to tune", why=why, hint=hint)
    for number, contest in enumerate(contests):
        loaded = {name for mode in contest.modes for name in mode.spec_type.split(",")}
        draft, mode = current
        if draft == contest.draft and {*mode.spec_type.split(",")} <= loaded and mode not in contest.modes:
            contests[number] = replace(contest, modes=(*contest.modes, mode))
    return Candidates(tuple(contests), tuple(left_out))


def without_weights(settings: LoadSettings) -> Contest:
    """Return the load that measures only the drafters without weights."""
    others = others_of(settings)
    together = in_order(others)
    alone = [Mode(name) for name in others] if len(others) > 1 else []
    return Contest(None, (PLAIN, Mode(together), *alone, *_fixed(together, SUFFIX_LENGTHS, settings)))


def others_of(settings: LoadSettings) -> list[str]:
    """Return the requested drafters that need no weights and that draft for the prompts of the suites."""
    return [name for name in settings.drafters if REGISTRY[name].needs in ("nothing", "corpus")]


def _kind(draft: Header) -> str:
    return kind_of_head(draft) or "draft"


def _contest(
    draft: Path | None, own: str, others: Sequence[str], settings: LoadSettings, *, has_block: bool = False
) -> Contest:
    """Return the load of one draft: plain decoding, the drafters without weights, the draft alone, all together as
    `auto` uses them, and the draft with fixed lengths."""
    modes = [PLAIN, *([Mode(in_order(others))] if others else []), Mode(own)]
    if others or has_block:
        modes.append(Mode(in_order([*others, *([MTP] if has_block else []), own])))
    return Contest(draft, (*modes, *_fixed(own, LENGTHS, settings)))


def _fixed(spec_type: str, lengths: Sequence[int], settings: LoadSettings) -> Iterator[Mode]:
    """Yield the modes of fixed lengths, up to the longest draft of the settings."""
    longest = settings.draft_n_max
    return (Mode(spec_type, f"fixed:{length}") for length in sorted({min(length, longest) for length in lengths}))


def current_mode(current: LoadSettings, target: Header, default: Path | None) -> tuple[Path | None, Mode]:
    """Return the draft and the mode of a start without options, whose settings are `current`."""
    if current.spec_type == "none" or current.pace == "off" or current.draft_n_max == 0:
        return None, PLAIN
    draft = None
    if current.self_draft is None:
        with suppress(EdgespecError):  # a draft that is set and missing cannot be used
            draft = find_draft(current, target, default, _untold, lambda text: None)
    kind = None if draft is None else _kind(read_header(draft))
    if current.spec_type != "auto":
        asked = current.spec_type.split(",")
        names = [kind if kind and name in (*HEAD_KINDS, "draft") else name for name in asked]
    else:
        names = others_of(current)
        names += [MTP] if not mtp_mismatch(target) else []
        names += [kind] if kind else []
    return draft, Mode(in_order(dict.fromkeys(names)), current.pace)


def name_of_draft(path: Path) -> str:
    """Return the name by which a draft can be given as an option."""
    return short_spec(name_of(path))


def _drafts(
    settings: LoadSettings, target: Header, default: Path | None, *, only_named: bool
) -> tuple[dict[Path, str], list[LeftOut]]:
    """Return the drafts to measure with the drafters that they are, each once, and those that cannot be used."""
    found: dict[Path, str] = {}
    left_out: list[LeftOut] = []
    if settings.draft_model == AUTO_DRAFT:
        best = find_draft(settings, target, default, _untold, lambda text: None)
        named = [best] if best else []
    else:
        named = [resolve(settings.draft_model).path] if settings.draft_model else []
    for path in [*named, *([default] if default and not only_named else [])]:
        try:
            found.setdefault(path, _kind(read_header(path)))
        except ModelFileError as error:
            left_out.append(LeftOut(name_of_draft(path), error.why or error.what))
    known = {path.resolve() for path in (*named, *found)}
    for draft in [] if only_named else drafts_near(target):
        if draft.path.resolve() in known:
            continue
        if not draft.problem:
            found[draft.path] = draft.found.kind or "draft"
        elif draft.is_broken or draft.path.parent == target.path.parent:  # others belong to other models
            left_out.append(LeftOut(short_spec(draft.found.spec), draft.problem))
    wanted = {path: kind for path, kind in found.items() if _is_wanted(settings, path, kind)}
    return wanted, left_out


def _is_wanted(settings: LoadSettings, path: Path, kind: str) -> bool:
    """True if a requested drafter can use the draft; "draft" also means a head, unless it comes with edgespec."""
    return kind in settings.drafters or ("draft" in settings.drafters and path.parent != HEADS)


def _untold(what: str, done: float) -> None:
    """Show no progress: finding a draft takes no time."""
