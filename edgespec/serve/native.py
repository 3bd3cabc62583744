"""The endpoints of llama.cpp's server for tokens, templates, and the state of the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path

from edgespec import __version__
from edgespec.core.setting import facts_of
from edgespec.dialects.about import calls_of, reasoning_of
from edgespec.gguf_file.adapters import parse_adapters
from edgespec.gguf_file.model_check import check_model
from edgespec.models.text_facts import text_facts
from edgespec.requests.bad_input import BadInputError, JsonObject, UnsupportedError, wrong
from edgespec.requests.fields import Fields
from edgespec.requests.forms import TokenizeFields
from edgespec.requests.known_fields import APPLY_TEMPLATE
from edgespec.runtime.prompts import Prompts
from edgespec.serve.chat import Call
from edgespec.serve.openai import chat_call, text_call
from edgespec.serve.pool import Place
from edgespec.serve.served import STATE_S, Served
from edgespec.serve.threads import in_thread
from edgespec.settings import AnswerSettings, LoadSettings, Request

MOST_TOKENS = 2**17  # of one /detokenize
MOST_CHARACTERS, MOST_WITH_PIECES = 2**20, 2**17  # of one /tokenize
MOST_COUNTED, CHARACTERS = 2**20, 16  # characters whose tokens are counted, and for each token of the context


async def tokenize(body: JsonObject, model: Served) -> dict[str, object]:
    """Return the ids of a text; with `with_pieces` also the text of each. vLLM has other names for the fields."""
    fields = Fields(body).read(TokenizeFields)
    text = fields.prompt if fields.content is None else fields.content
    add_special = fields.add_special_tokens if fields.add_special is None else fields.add_special
    if len(text) > (most := MOST_WITH_PIECES if fields.with_pieces else MOST_CHARACTERS):
        raise BadInputError(f"content must have at most {most:,} characters, not {len(text):,}", "content")
    ids = await model.ask(lambda w: w.token_ids(text, add_special=add_special, parse_special=fields.parse_special))
    if not fields.with_pieces:
        return {"tokens": ids, "count": len(ids), "max_model_len": model.n_ctx}
    pieces = await model.ask(lambda worker: worker.token_bytes(ids))
    return {"tokens": [{"id": id, "piece": _piece(data)} for id, data in zip(ids, pieces, strict=True)]}


async def detokenize(body: JsonObject, model: Served) -> dict[str, object]:
    """Return the text of ids; with `with_pieces` also the text of each."""
    fields = Fields(body)
    ids, with_pieces = fields.take("tokens"), fields.flag("with_pieces")
    if not isinstance(ids, list) or len(ids) > MOST_TOKENS or not all(type(id) is int for id in ids):
        raise wrong("tokens", f"be a list of at most {MOST_TOKENS} ids", ids)
    pieces = await model.ask(lambda worker: worker.token_bytes(ids))
    text = b"".join(pieces).decode("utf-8", "replace")
    return {"content": text, "prompt": text} | ({"pieces": [_piece(data) for data in pieces]} if with_pieces else {})


def tokenizer_info(model: Served) -> dict[str, object]:
    """Return the tokens around texts and the chat template, as vLLM does for lm-evaluation-harness."""
    vocabulary = model.vocabulary
    ends = {"bos_token": vocabulary.bos, "eos_token": vocabulary.eos}
    texts = {
        name: None if id is None else model.token_bytes(id).decode("utf-8", "replace") for name, id in ends.items()
    }
    return texts | {"chat_template": model.templates.default or None, "model_max_length": model.n_ctx}


async def apply_template(body: JsonObject, model: Served) -> dict[str, object]:
    """Return the prompt that the template makes of messages, or with `count` the number of its tokens."""
    call = await in_thread(partial(chat_call, body, model, APPLY_TEMPLATE), "reads a request")
    request = call.requests[0]
    if Fields(body).flag("count"):
        return {"n_tokens": await model.ask(lambda worker: worker.prompt_length(request))}
    if any(message.images for message in request.messages):
        raise UnsupportedError("messages", "images cannot be shown as text; ask for the number of tokens with count")
    return {"prompt": await model.ask(lambda worker: worker.render(request))}


def counting(read: Callable[[JsonObject, Served], Call]) -> Callable[..., Awaitable[dict[str, int]]]:
    """Return a question for the number of tokens in the prompt of a body, which `read` reads."""

    async def counted(body: JsonObject, model: Served) -> dict[str, int]:
        call = await in_thread(partial(read, body, model), "reads a request")
        request = call.requests[0]
        if Prompts.length(request) > (most := max(MOST_COUNTED, CHARACTERS * model.n_ctx)):
            raise BadInputError(f"messages of more than {most:,} characters are not counted", "messages")
        return {"input_tokens": await model.ask(lambda worker: worker.prompt_length(request))}

    return counted


async def pace(body: JsonObject, model: Served) -> dict[str, object]:
    """Return why drafters are active or off for requests like this one."""
    read = chat_call if body.get("messages") else text_call
    call = await in_thread(partial(read, body, model), "reads a request")
    verdicts = await model.ask(lambda worker: worker.pace_verdicts(call.requests[0]))
    return {"drafters": [asdict(verdict) for verdict in verdicts]}


def models(place: Place) -> list[dict[str, object]]:
    """Return a model and its adapters as /v1/models lists them."""
    own = _model(place)
    more = [own | {"id": f"{own['id']}:{adapter}", "parent": own["id"]} for adapter in place.offer.adapters]
    return [own, *more]


def _model(place: Place) -> dict[str, object]:
    """Return the description of a model, with the `status` of llama.cpp's server."""
    served = place.living
    status: dict[str, object] = {"value": place.state}
    if place.has_failed or (place.served and not served):
        status["failed"] = True
    made: dict[str, object] = {"id": place.offer.name, "object": "model", "created": 0, "owned_by": "edgespec"}
    if served is None:
        return made | {"status": status}
    info = served.info
    meta = {
        "description": info.description,
        "n_ctx": info.ctx_size,
        "draft_model": _file_name(info.draft_model),
        "drafters": [*info.drafters],
        "pooling": info.pooling,
    }
    return made | {"created": served.created, "status": status, "meta": meta}


def props(place: Place) -> dict[str, object]:
    """Return what is loaded, and the settings that a request does not give."""
    served, params = place.living, generation_settings(place.offer.defaults)
    params["seed"] = -1 if place.offer.seed is None else place.offer.seed  # of requests without a seed; -1: random
    made = {
        "default_generation_settings": {"params": params},
        "model_alias": place.offer.name,
        "system_prompt": place.offer.system,
        "is_sleeping": served is None,
        "build_info": f"edgespec-{__version__}",
    }
    if served is None:
        return made
    info = served.info
    about = replace(info, draft_model=_file_name(info.draft_model), projector=_file_name(info.projector)).as_json()
    del about["model"]
    about["reasoning"] = reasoning_of(served.templates.default)
    about["calls"] = calls_of(served.templates.of(has_tools=True))
    about["texts_depend_on"] = _texts_depend_on(info.model, served.settings)
    return made | {
        "default_generation_settings": {"n_ctx": served.n_ctx, "params": params},
        "total_slots": served.n_slots,
        "model_path": Path(info.model).name,
        "chat_template": served.templates.default,
        **({"chat_template_tool_use": served.templates.tool_use} if served.templates.tool_use else {}),
        "modalities": {"vision": bool(info.projector), "audio": False},
        "edgespec": about,
    }


def _file_name(path: str | None) -> str | None:
    return path and Path(path).name


def generation_settings(request: Request) -> dict[str, object]:
    """Return the settings of an answer under the names of llama.cpp's server."""
    settings = asdict(request.sampling) | {"n_predict": request.max_tokens}
    settings["logit_bias"] = [[id, None if bias == float("-inf") else bias] for id, bias in settings["logit_bias"]]
    settings |= {name: getattr(request, name) for name in (*facts_of(AnswerSettings), "ignore_eos")}
    adapters = [{"id": id, "scale": scale} for id, scale in request.lora]
    return settings | {"stop": [*request.stop], "n_probs": request.logprobs or 0, "lora": adapters}


def adapters(place: Place) -> list[dict[str, object]]:
    """Return the adapters of a model with their usual scales; none for a model that is not loaded."""
    if place.living is None:
        return []
    found = parse_adapters(place.living.settings.lora)
    return [{"id": id, "name": a.name, "path": Path(a.path).name, "scale": a.scale} for id, a in enumerate(found)]


async def slots(place: Place) -> list[dict[str, object]]:
    """Return the state of each slot; a model that is not loaded or does not generate has no slots."""
    served = place.living
    if served is None or not served.generates:
        return []
    n_ctx, drafts = served.n_ctx, bool(served.info.drafters)
    held: list[dict[str, object]] = await served.ask(lambda worker: worker.slots(), STATE_S)
    return [slot | {"n_ctx": n_ctx, "speculative": drafts} for slot in held]


@cache
def _texts_depend_on(path: str, settings: LoadSettings) -> dict[str, object]:
    """Return what texts of this model depend on, as the file next to a batch's output has it."""
    return text_facts(check_model(Path(path), embeds=True), settings)


def _piece(data: bytes) -> object:
    """Return the text of a token, or the bytes of one that is a part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
