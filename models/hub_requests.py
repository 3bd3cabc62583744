"""Requests to the Hugging Face hub: what they carry, when to try again, and what their failures mean for a user."""

from __future__ import annotations

import re

from edgespec import __version__
from edgespec.errors import EdgespecError, ModelNotFoundError
from edgespec.models.spec import HubSpec

RETRIES = 4  # of what fails without having brought anything
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0  # the hub counts requests over five minutes
AGAIN = "what is here stays, and the same command goes on from there"

_PASSING = ("TimeoutException", "NetworkError", "RemoteProtocolError", "ConnectionError")


class DownloadError(EdgespecError):
    """A model of the hub could not be fetched."""

    exit_code = 3


def endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def host() -> str:
    """The hub's name, as in messages."""
    return endpoint().partition("://")[2] or endpoint()


def headers() -> dict[str, str]:
    """Who asks, with the token of the user if there is one."""
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    agent = {"user-agent": f"edgespec/{__version__}", "accept-encoding": "identity"}
    return agent | ({"authorization": f"Bearer {token}"} if token else {})


def timeout_s() -> float:
    """How long the hub may say nothing."""
    from huggingface_hub import constants

    return constants.HF_HUB_DOWNLOAD_TIMEOUT


def http_error() -> type[Exception]:
    """What goes wrong with requests: a class of httpx, or of httpx2, whichever huggingface_hub uses."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(each for each in HfHubHTTPError.__mro__ if each.__name__ == "HTTPError")


def kind(error: Exception, *names: str) -> bool:
    """Whether an error is of one of these classes, which may be httpx's."""
    return any(each.__name__ in names for each in type(error).__mro__)


def wait_before_retry_s(error: Exception, failures: int) -> float | None:
    """How long to wait after so many failures in a row; None where trying again is of no use."""
    status = _status(error)
    passes = status in (408, 429) or status >= 500 or kind(error, *_PASSING)
    if failures > RETRIES or not passes:
        return None
    return min(max(_asked_wait_s(error), FIRST_WAIT_S * 2.0 ** (failures - 1)), LONGEST_WAIT_S)


def reason(error: Exception) -> str:
    """Why a request failed, in a few words."""
    if _status(error):
        return f"{host()} answers {_status(error)}"
    if kind(error, "TimeoutException"):
        return f"nothing came from {host()} for {timeout_s()} s"
    return f"{host()} cannot be reached" if kind(error, "ConnectError") else f"the connection to {host()} broke"


def explained(error: Exception, wanted: HubSpec) -> EdgespecError:
    """A failed request as a user can act on it."""
    code, status, page = _header(error, "X-Error-Code"), _status(error), f"{endpoint()}/{wanted.repository}"
    if code == "RevisionNotFound":
        return ModelNotFoundError(
            f"{wanted.repository} has no revision '{wanted.revision}'", hint=f"its branches and tags: {page}/tree/main"
        )
    if code == "EntryNotFound":
        return DownloadError(f"a file of {wanted.repository} is gone", why="the hub listed it", hint="try again")
    if code == "GatedRepo":
        return _gated(error, wanted, page)
    if _header(error, "X-Error-Message").startswith("Invalid credentials"):
        return DownloadError(
            f"{host()} does not know the token", hint="get a new one: hf auth login, or unset HF_TOKEN"
        )
    if status in (401, 404):
        return _not_found(error, wanted)
    if status == 403:
        why = _header(error, "X-Error-Message") or "the answer is 403"
        return DownloadError(f"{host()} gives no access to {wanted.repository}", why=why, hint=f"see {page}")
    if status == 429:
        more = "" if _token_sent(error) else "; who is logged in (hf auth login) may ask more often"
        return DownloadError(f"{host()} allows no more requests for now", hint=f"wait some minutes: {AGAIN}{more}")
    if status >= 500:
        return DownloadError(
            f"{host()} does not work right now", why=f"it answers {status}", hint=f"try later: {AGAIN}"
        )
    if kind(error, "TimeoutException"):
        return DownloadError(
            f"{host()} does not answer", why=f"nothing came for {timeout_s()} s", hint=f"try later: {AGAIN}"
        )
    if kind(error, "UnsupportedProtocol"):
        return DownloadError(f"{endpoint()} is no address", why=str(error), hint="is HF_ENDPOINT right?")
    if kind(error, "ConnectError", "ProxyError"):
        return DownloadError(f"{host()} cannot be reached", why=str(error), hint="try again once there is a network")
    return DownloadError(f"the connection to {host()} broke", why=str(error), hint=AGAIN)


def _gated(error: Exception, wanted: HubSpec, page: str) -> DownloadError:
    if _token_sent(error):
        why = "its owner has not given access to the account of your token"
        hint = f"ask for it, or accept the licence, on {page}"
    else:
        why = "its licence has to be accepted first"
        hint = f"accept it on {page}, then log in: hf auth login (or set HF_TOKEN)"
    return DownloadError(f"{wanted.repository} is gated", why=why, hint=hint)


def _not_found(error: Exception, wanted: HubSpec) -> ModelNotFoundError:
    similar = [name for name in _similar(wanted.repository) if name != wanted.repository]
    token = "your token may not see it" if _token_sent(error) else "it needs a token: hf auth login, or HF_TOKEN"
    return ModelNotFoundError(
        f"there is no repository {wanted.repository} on {host()}",
        why=f"or it is private, and {token}",
        hint=f"did you mean {', '.join(similar)}?" if similar else "",
    )


def _similar(repository: str) -> list[str]:
    """Repositories with GGUF files that are called like it; none where the hub does not say."""
    from huggingface_hub import constants, get_session

    name = re.sub("[-_.]?gguf$", "", repository.rpartition("/")[2], flags=re.IGNORECASE)
    try:
        answer = get_session().get(  # HfApi.list_models would wait for ever
            f"{endpoint()}/api/models",
            params={"search": name, "filter": "gguf", "limit": 5},
            headers=headers(),
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        return [str(each["id"]) for each in answer.json()]
    except (http_error(), ValueError, KeyError, TypeError):
        return []


def _status(error: Exception) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0))


def _header(error: Exception, name: str) -> str:
    response = getattr(error, "response", None)
    return str(response.headers.get(name, "")) if response is not None else ""


def _token_sent(error: Exception) -> bool:
    response = getattr(error, "response", None)
    return response is not None and "authorization" in response.request.headers


def _asked_wait_s(error: Exception) -> float:
    """How long the hub asks to be left alone."""
    after = _header(error, "Retry-After") or next(
        iter(re.findall(r"\br=0;\s*t=(\d+)", _header(error, "RateLimit"))), ""
    )
    return float(after) if after.isdigit() else 0.0
