"""Search the hub for repositories with GGUF files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub.repository import is_offline
from edgespec.models.hub.requests import DownloadError, check_endpoint, endpoint, headers, host, http_error, session
from edgespec.models.hub.requests import reason as reason_of
from edgespec.models.names.spec import HubSpec, sources

MOST = 20
PATIENCE_S = 10.0
_TALKING = ("", "any-to-any", "conversational", "image-text-to-text", "text-generation", "text2text-generation")


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository that was found. `n_params` and `architecture` are 0 and empty if the hub does not tell."""

    name: str
    downloads: int = 0
    likes: int = 0
    is_gated: bool = False
    n_params: int = 0
    architecture: str = ""


def search(words: str) -> list[Repository]:
    """The repositories with GGUF files of models that write text, those downloaded most first. Raises DownloadError."""
    if is_offline():
        raise DownloadError("offline: the hub is not searched")
    check_endpoint()
    session()  # imports huggingface_hub, whose classes of errors are needed below
    properties = ("downloads", "likes", "gated", "pipeline_tag", "gguf")
    params = {"search": words, "filter": "gguf", "sort": "downloads", "limit": MOST, "expand": list(properties)}
    try:
        answer = session().get(f"{endpoint()}/api/models", params=params, headers=headers(), timeout=PATIENCE_S)
        answer.raise_for_status()
        found = [_repository(each) for each in answer.json() if each.get("pipeline_tag") in (None, *_TALKING)]
    except http_error() as error:
        raise DownloadError(reason_of(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DownloadError(f"{host()} does not respond like a model hub") from error
    return [each for each in found if _can_be_named(each.name)]


def _repository(told: dict[str, Any]) -> Repository:
    gguf = told.get("gguf") or {}
    return Repository(
        str(told["id"]),
        int(told.get("downloads") or 0),
        int(told.get("likes") or 0),
        bool(told.get("gated")),
        int(gguf.get("total") or 0),
        str(gguf.get("architecture") or ""),
    )


def _can_be_named(name: str) -> bool:
    try:
        return sources(f"hf:{name}") == [HubSpec(name)]
    except ModelNotFoundError:
        return False
