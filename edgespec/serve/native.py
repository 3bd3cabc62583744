"""The endpoints beside answers, as llama.cpp's server has them: tokens, templates, and the state of the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from edgespec import __version__
from edgespec.batch import sidecar
from edgespec.gguf_file.model_check import check_model
from edgespec.serve.errors import BadFieldError
from edgespec.serve.fields import Fields
from edgespec.serve.openai import chat_call
from edgespec.serve.pool import Pool, Served
from edgespec.settings import LoadSettings, shown

MOST_TOKENS = 2**20  # of one /detokenize


async def tokenize(body: Mapping[str, Any], model: Served) -> dict[str, Any]:
    """The ids of a text; with `with_pieces` also what each stands for."""
    fields = Fields(body)
    text = fields.text("content", fields.text("prompt"))
    add_special, parse_special = fields.flag("add_special"), fields.flag("parse_special", True)
    with_pieces = fields.flag("with_pieces")
    ids = await model.ask(lambda w: w.token_ids(text, add_special=add_special, parse_special=parse_special))
    if not with_pieces:
        return {"tokens": ids}
    pieces = await model.ask(lambda worker: worker.token_bytes(ids))
    return {"tokens": [{"id": id, "piece": _piece(data)} for id, data in zip(ids, pieces, strict=True)]}


async def detokenize(body: Mapping[str, Any], model: Served) -> dict[str, Any]:
    """The text of ids; with `with_pieces` also what each stands for."""
    fields = Fields(body)
    ids, with_pieces = fields.take("tokens"), fields.flag("with_pieces")
    if not isinstance(ids, list) or len(ids) > MOST_TOKENS or not all(type(id) is int for id in ids):
        raise BadFieldError("tokens", f"tokens must be a list of at most {MOST_TOKENS} ids, not {shown(ids)}")
    pieces = await model.ask(lambda worker: worker.token_bytes(ids))
    found = {"content": b"".join(pieces).decode("utf-8", "replace")}
    return found | ({"pieces": [_piece(data) for data in pieces]} if with_pieces else {})


async def apply_template(body: Mapping[str, Any], model: Served) -> dict[str, Any]:
    """The prompt that messages make, or with `count` the number of its tokens."""
    request = chat_call(body, model).requests[0]
    if Fields(body).flag("count"):
        return {"n_tokens": await model.ask(lambda worker: worker.prompt_length(request))}
    return {"prompt": await model.ask(lambda worker: worker.render(request))}


def models(pool: Pool) -> dict[str, Any]:
    """/v1/models."""
    return {
        "object": "list",
        "data": [
            {
                "id": model.name,
                "object": "model",
                "created": model.created,
                "owned_by": "edgespec",
                "meta": {
                    "description": model.about["description"],
                    "n_ctx": model.n_ctx,
                    "draft_model": model.about["draft_model"] and Path(model.about["draft_model"]).name,
                    "drafters": model.about["drafters"],
                },
            }
            for model in pool.models
        ],
    }


def props(model: Served) -> dict[str, Any]:
    """What is loaded, and the settings that a request leaves open."""
    defaults = model.defaults
    sampling = asdict(defaults.sampling)
    sampling["logit_bias"] = [[id, None if bias == float("-inf") else bias] for id, bias in sampling["logit_bias"]]
    about = {name: value for name, value in model.about.items() if name != "model"}
    about["draft_model"] = about["draft_model"] and Path(about["draft_model"]).name
    about["texts_depend_on"] = _texts_depend_on(model.about["model"], model.settings)
    return {
        "default_generation_settings": {
            "n_ctx": model.n_ctx,
            "params": {**sampling, "max_tokens": defaults.max_tokens, "verify": defaults.verify},
        },
        "total_slots": model.n_slots,
        "model_alias": model.name,
        "model_path": Path(model.about["model"]).name,
        "build_info": f"edgespec-{__version__}",
        "chat_template": model.template,
        "edgespec": about,
    }


async def slots(model: Served) -> list[dict[str, Any]]:
    """What each slot holds and does."""
    n_ctx, drafts = model.n_ctx, bool(model.about["drafters"])
    held: list[dict[str, Any]] = await model.ask(lambda worker: worker.slots())
    return [slot | {"n_ctx": n_ctx, "speculative": drafts} for slot in held]


@cache
def _texts_depend_on(path: str, settings: LoadSettings) -> dict[str, Any]:
    """Of the model, as the files beside a batch's output have it."""
    return sidecar.of_model(check_model(Path(path)), settings)


def _piece(data: bytes) -> Any:
    """A text, or the bytes of a part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
