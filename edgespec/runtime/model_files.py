"""The files of a model: the target, its draft model or head, projector and adapters, all with checked headers.

A draft near the target is used although no option names it, unless it has not paid off so far.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import PairError, UsageError
from edgespec.events import Progress
from edgespec.files.cache import cache_name, read_cache, write_cache
from edgespec.files.paths import file_facts
from edgespec.gguf_file.adapters import Adapter, check_adapter, parse_adapters
from edgespec.gguf_file.chat_templates import ChatTemplates, chat_templates
from edgespec.gguf_file.head_check import check_draft_file, check_head_fits, is_head, kind_of_head, mtp_mismatch
from edgespec.gguf_file.header import Header, read_header
from edgespec.gguf_file.model_check import check_model
from edgespec.llama import rpc
from edgespec.llama.library import build_id
from edgespec.llama.workers import RemoteDevice, parse_addresses
from edgespec.models.names.model_names import short_spec
from edgespec.models.names.spec import resolve
from edgespec.models.pair.near import NearDraft, drafts_near
from edgespec.runtime.vision import projector_file
from edgespec.settings import AUTO_DRAFT, HEADS, MODEL_DRAFTERS, MTP, LoadSettings

TRIED = 1000  # steps without a gain, about five answers, after which a draft is no longer loaded


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The headers of a target and of its draft, and what belongs to the target.

    Attributes:
        templates: The sources of the chat templates.
        projector: The file that reads images.
        workers: The devices of other machines for layers of the target.
        draft: The header of the draft model or head.
        is_draft_optional: True if no setting asks for this draft, so that it is left out if it cannot be loaded.
        missing_draft: The name of a draft of the catalogue that is not downloaded; empty if there is none.
    """

    target: Header
    templates: ChatTemplates
    projector: Path | None
    adapters: tuple[Adapter, ...]
    adapter_headers: tuple[Header, ...]
    workers: Sequence[RemoteDevice]
    draft: Header | None
    is_draft_optional: bool
    missing_draft: str


def find_files(settings: LoadSettings, progress: Progress, note: Callable[[str], None]) -> ModelFiles:
    """Find and check the files that the settings mean.

    Raises ModelNotFoundError, ModelFileError, PairError, UsageError.
    """
    model = resolve(settings.model)
    target = check_model(model.path)
    templates = chat_templates(target, settings.chat_template, settings.chat_template_file)
    projector = projector_file(settings.mmproj, target, note)
    adapters = parse_adapters(settings.lora)
    adapter_headers = tuple(check_adapter(adapter.path, target) for adapter in adapters)
    workers = rpc.offers(parse_addresses(settings.rpc)) if settings.rpc else []
    draft_path = find_draft(settings, target, model.default_draft, progress, note)
    if draft_path is None and settings.uses_draft and settings.spec_type != "auto":
        raise no_draft_model(settings, target, model.missing_draft)
    # Check both headers first: an error in the draft should not appear only after the target is loaded.
    draft = check_draft_file(draft_path) if draft_path else None
    if draft is not None and is_head(draft):
        check_head_fits(target, draft)
    is_named = settings.draft_model or settings.spec_type != "auto" or draft_path == model.default_draft
    return ModelFiles(
        target,
        templates,
        projector,
        adapters,
        adapter_headers,
        workers,
        draft,
        is_draft_optional=draft is not None and not is_named,
        missing_draft=model.missing_draft,
    )


# --- the draft --------------------------------------------------------------------------------------------------------


def find_draft(
    settings: LoadSettings, header: Header, default: Path | None, progress: Progress, note: Callable[[str], None]
) -> Path | None:
    """Return the file of the draft, or None; `default` is the target's default draft. Self-drafts are made here.

    The draft that "auto" chose is reported to `note`. Raises UsageError, ModelNotFoundError, ModelFileError.
    """
    if settings.draft_n_max > 0 and settings.self_draft is not None:
        from edgespec.models.pair.self_draft import self_draft

        return self_draft(resolve(settings.model).path, settings.self_draft, lambda done: progress("making", done))
    if not settings.uses_draft:
        return None
    if settings.draft_model not in (None, AUTO_DRAFT):
        return resolve(settings.draft_model).path
    near = near_draft(settings, header, note, only_heads=default is not None)
    is_better = near is not None and bool(near.found.kind) and settings.spec_type == "auto"  # than a draft model
    if default is not None and not is_better and _can_be(settings, read_header(default)):
        return default
    if near is not None:
        if not near.is_bundled:
            note(f"{near.what}: found near {header.path.name}, {near.found.why}")
        return near.path
    return _best_draft(settings, header, note) if settings.draft_model else None


def _can_be(settings: LoadSettings, draft: Header | None) -> bool:
    """True if one of the requested drafters can use this file."""
    return draft is not None and ("draft" in settings.drafters or kind_of_head(draft) in settings.drafters)


def _best_draft(settings: LoadSettings, header: Header, note: Callable[[str], None]) -> Path | None:
    """Return the best draft on this machine for the target, if there is one."""
    from edgespec.models.names.local import local_models
    from edgespec.models.pair.suggest import best, suggestions

    found = best(suggestions(header, (model for model in local_models() if _can_be(settings, model.header))))
    if found is None:
        note(f"no model here can draft for {header.path.name}: 'edgespec pair suggest' shows why")
        return None
    note(f"draft model {found.spec}: {found.why}")
    return resolve(found.spec).path


def drafters_here(settings: LoadSettings) -> set[str]:
    """Return the drafters with weights that can be loaded: "draft" or the kind of the head, and "mtp" if the target has
    an MTP block. Raises ModelNotFoundError, ModelFileError."""
    found = resolve(settings.model)
    here = set() if mtp_mismatch(read_header(found.path)) else {MTP}
    if settings.draft_model == AUTO_DRAFT:
        return here | {"draft"}
    draft = resolve(settings.draft_model).path if settings.draft_model else found.default_draft
    if draft is None and (near := near_draft(settings, check_model(found.path), lambda text: None, untried=True)):
        draft = near.path
    return here | {kind_of_head(read_header(draft)) or "draft"} if draft else here


def drafters_with(settings: LoadSettings, target: Header, draft: Header | None) -> list[str]:
    """Return the drafters to load for this target and draft, in the order in which they are asked.

    A head replaces a draft model. Raises PairError if a head or the MTP block was requested by name and is missing.
    """
    names = [name for name in settings.drafters if draft is not None or name not in MODEL_DRAFTERS]
    if MTP in names and (why := mtp_mismatch(target)):
        if settings.spec_type != "auto":
            raise PairError(f"{target.path.name} cannot draft by `spec_type=mtp`", why=why, hint="leave mtp out")
        names.remove(MTP)
    if draft is None:
        return names
    kind = kind_of_head(draft) or "draft"
    wanted = [name for name in names if name in (*HEADS, "draft")]
    if wanted and not {kind, "draft"} & {*wanted}:
        what = "a draft model, not a draft head" if kind == "draft" else f"a head of the kind {kind}"
        raise PairError(f"{draft.path.name} is {what}", hint=f"`spec_type={kind}` drafts with it")
    return [*dict.fromkeys(kind if name in wanted else name for name in names)]


def no_draft_model(settings: LoadSettings, header: Header, missing: str) -> UsageError:
    """Return the error for a draft model or head that was requested but is missing."""
    what, named, get_one = "a draft model", "MODEL", "'edgespec pair suggest' lists what would fit"
    if "draft" not in settings.drafters:
        what, named = "a draft head", "HEAD.gguf"
        kind = next(name for name in settings.drafters if name in HEADS)
        model = shlex.quote(settings.model)
        get_one = f"'edgespec draft train {model} --kind {kind} -o HEAD.gguf' trains one"
        if kind == "peagle":
            get_one = f"'edgespec draft convert OWNER/NAME {model} -o HEAD.gguf' converts a published one"
        if kind == "assistant":
            get_one = f"'edgespec pull {model}' downloads that of a Gemma 4"
    elif missing:
        get_one = f"'edgespec pull {missing}' downloads one"
    return UsageError(
        f"`spec_type={settings.spec_type}` needs {what}",
        why=f"there is none for {header.path.name}",
        hint=f"name one (`draft_model={named}`); {get_one}; `spec_type={settings.without_draft}` goes without",
    )


# --- drafts near the target -------------------------------------------------------------------------------------------


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
