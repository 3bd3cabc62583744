"""Chats, messages, settings and models as plain data for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from edgespec.chat.attachments import IMAGE, Attachment, without_files
from edgespec.chat.conversation import Conversation
from edgespec.chat.settings import SETTINGS, ChatSettings
from edgespec.core.stats import Stats
from edgespec.events import TokenEvent
from edgespec.gguf_file.model_check import is_embedding
from edgespec.history import AnswerRecord, Branch, ChatInfo, Hit, Store, StoreError, Turn, UnknownChatError
from edgespec.models.names.source import lasting
from edgespec.serve.ollama_models import described, sees
from edgespec.serve.pool import Place
from edgespec.text.figures import count_of
from edgespec.tools.results import ToolResult
from edgespec.tools.toolbox import Calling

View = dict[str, object]


def model(place: Place) -> View | None:
    """Return a model of the server, unless it cannot answer. Facts of a file that cannot be read are null."""
    facts, served = described(place), place.living
    if facts is not None and facts.header is not None and is_embedding(facts.header):
        return None
    view: View = {"name": place.offer.name, "state": place.state, "context": served.n_ctx if served else None}
    view |= dict.fromkeys(("bytes", "parameters", "quantisation", "images"))
    if facts is not None and facts.header is not None:
        view |= {"bytes": facts.size_bytes, "quantisation": facts.quantisation}
        view |= {"parameters": count_of(facts.n_params), "images": sees(place, facts.header)}
    return view


def chat(store: Store, conversation: Conversation, usual: ChatSettings, places: Sequence[Place]) -> View:
    """Return a chat with its open branch. `usual` are the settings of new chats."""
    saved, n_branches = None, 0
    with suppress(UnknownChatError):  # it is not saved yet
        saved = store.chat_settings(conversation.id).get("model")
        n_branches = len(conversation.branches())
    return {
        "id": conversation.saved_id,
        "title": conversation.title,
        "model": next((each.offer.name for each in places if lasting(each.offer.settings.model) == saved), None),
        "system": conversation.system,
        "settings": changed_settings(conversation.settings, usual),
        "branches": n_branches,
        "turns": [turn(store, conversation.id, each, has_versions=n_branches > 1) for each in conversation.turns],
    }


def turn(store: Store, chat: str, turn: Turn, *, has_versions: bool = True) -> View:
    """Return a message. Files are apart from the text of a user's message, calls of tools from that of an answer."""
    files, text = without_files(turn.content) if turn.role == "user" else ([], turn.said)
    view: View = {
        "key": turn.key,
        "parent": turn.parent,
        "role": turn.role,
        "text": text,
        "files": [file(each) for each in files],
        "created": turn.created_s,
        "versions": _versions(store, chat, turn.key) if has_versions else [turn.key],
    }
    if turn.answer is not None:
        view |= answer(turn.answer)
    if turn.role == "tool":
        view |= {"text": "", "tool": result(ToolResult.of(turn.content))}
    return view


def _versions(store: Store, chat: str, key: str) -> list[str]:
    """Return the versions of a message; only itself if it is not saved yet."""
    try:
        return store.siblings(chat, key)
    except StoreError:
        return [key]


def file(attached: Attachment) -> View:
    """Return a file of a message, without its text."""
    image = IMAGE.fullmatch(attached.mark)
    facts = {"kind": "image", "image": image["digest"]} if image else {"kind": "text", "image": None}
    return {"name": attached.name, "about": attached.about, "bytes": attached.n_bytes, **facts}


def answer(record: AnswerRecord) -> View:
    """Return how an answer was generated."""
    return {
        "model": " + ".join(filter(None, (record.model, record.draft_model))),
        "end": record.end,
        "seed": record.seed,
        "stats": stats(Stats.from_json(record.stats), record.settings, record.stats) if record.stats else None,
    }


def stats(counted: Stats, settings: Mapping[str, Any] | None = None, figures: Mapping[str, Any] | None = None) -> View:
    """Return the figures of an answer. `plain_tokens_per_s` is an estimate of the speed without drafts."""
    speedup = counted.speedup if counted.proposed else None
    return {
        "tokens": counted.generated_tokens,
        "prompt_tokens": counted.prompt_tokens,
        "cached_tokens": counted.cached_tokens,
        "prompt_seconds": counted.prompt_s,
        "seconds": counted.generation_s,
        "tokens_per_s": counted.tokens_per_s,
        "plain_tokens_per_s": counted.tokens_per_s / speedup if speedup else None,
        "passes": counted.rounds,
        "proposed": counted.proposed,
        "accepted": counted.accepted,
        "drafters": {name: source.accepted for name, source in counted.by_source.items() if source.accepted},
        "context_used": (figures or {}).get("context_used"),
        "context_size": (settings or {}).get("ctx_size"),
    }


def result(result: ToolResult) -> View:
    """Return the result of a call of a tool."""
    return {
        "name": result.label,
        "arguments": result.shown_arguments,
        "result": result.text,
        "outcome": result.outcome,
        "summary": result.summary,
    }


def calling(calling: Calling, id: str) -> View:
    """Return a call of a tool as it proceeds; `id` names it in the user's decision."""
    made = ToolResult(calling.tool.label, calling.arguments, "not run", "")
    view: View = {"type": "call", "id": id, "name": made.label, "arguments": made.shown_arguments}
    return view | {"state": calling.state, "result": calling.result and result(calling.result)}


def event(event: TokenEvent) -> View:
    """Return a token, or how much of the prompt is read."""
    if event.reading is not None:
        total, cached, done = event.reading
        return {"type": "reading", "total": total, "cached": cached, "done": done}
    return {"type": "token", "text": event.text, "drafter": event.source, "pass": event.round}


def info(chat: ChatInfo) -> View:
    """Return a chat of a list."""
    return {
        "id": chat.id,
        "title": chat.title,
        "created": chat.created_s,
        "updated": chat.updated_s,
        "model": chat.model,
        "pinned": chat.is_pinned,
        "folder": chat.folder,
        "turns": chat.n_turns,
    }


def branch(branch: Branch) -> View:
    """Return a branch of a chat."""
    return {
        "leaf": branch.leaf,
        "turns": branch.n_turns,
        "preview": branch.preview,
        "updated": branch.updated_s,
        "current": branch.is_current,
    }


def hit(found: Hit) -> View:
    """Return a message that a search has found."""
    view = asdict(found)
    return view | {"created": view.pop("created_s")}


def settings(usual: ChatSettings) -> list[View]:
    """Return the settings of answers, with their values in new chats."""
    return [
        {
            "name": each.name,
            "group": each.group,
            "kind": each.facts.kind,
            "choices": [*each.facts.choices],
            "help": each.help,
            "value": each.show(usual),
        }
        for each in SETTINGS
    ]


def changed_settings(settings: ChatSettings, usual: ChatSettings) -> dict[str, str]:
    """Return the settings that differ from those of new chats, as a user would type them."""
    return {each.name: each.show(settings) for each in SETTINGS if each.value(settings) != each.value(usual)}
