"""Search the hub for repositories with GGUF files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub.cache import is_offline
from edgespec.models.hub.requests import DownloadError, check_endpoint, host, http_error, listed_models, reason, session
from edgespec.models.names.source import HubSpec
from edgespec.models.names.spec import sources

MOST = 20
PATIENCE_S = 10.0
_PROPERTIES = ("downloads", "likes", "gated", "pipeline_tag", "gguf")
_TEXT_TASKS = ("", "any-to-any", "conversational", "image-text-to-text", "text-generation", "text2text-generation")


@dataclass(frozen=True, slots=True)
class FoundRepository:
    """A repository that was found. `n_params` and `architecture` are 0 and empty if the hub does not report them."""

    name: str
    downloads: int = 0
    likes: int = 0
    is_gated: bool = False
    n_params: int = 0
    architecture: str = ""


def search(words: str) -> list[FoundRepository]:
    """Return the repositories with GGUF files of models that write text, the most downloaded first.

    Raises DownloadError.
    """
    if is_offline():
        raise DownloadError("offline: the hub is not searched")
    check_endpoint()
    session()  # imports huggingface_hub, whose classes of errors are needed below
    try:
        listed = listed_models(words, PATIENCE_S, sort="downloads", limit=MOST, expand=list(_PROPERTIES))
        found = [_repository(each) for each in listed if each.get("pipeline_tag") in (None, *_TEXT_TASKS)]
    except http_error() as error:
        raise DownloadError(reason(error)) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DownloadError(f"{host()} does not respond like a model hub") from error
    return [each for each in found if _can_be_named(each.name)]


def _repository(listed: dict[str, Any]) -> FoundRepository:
    gguf = listed.get("gguf") or {}
    return FoundRepository(
        str(listed["id"]),
        int(listed.get("downloads") or 0),
        int(listed.get("likes") or 0),
        bool(listed.get("gated")),
        int(gguf.get("total") or 0),
        str(gguf.get("architecture") or ""),
    )


def _can_be_named(name: str) -> bool:
    try:
        return sources(f"hf:{name}") == [HubSpec(name)]
    except ModelNotFoundError:
        return False
