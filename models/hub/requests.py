"""Requests to the Hugging Face hub: their headers, and what their failures mean for a user."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from typing import Any

from edgespec.errors import EdgespecError, ModelNotFoundError
from edgespec.models.hub.cache import partial_bytes
from edgespec.models.names.source import HubSpec

HOW_TO_LOG_IN = "hf auth login (or set HF_TOKEN)"
_ADDRESS = re.compile(
    r"(?P<scheme>https?://)(?:[^/?#]*@)?(?P<place>(?:[\w.-]+|\[[\da-f:.]+\])(?::\d{1,5})?(?:/[^?#@\s]*)?)",
    re.IGNORECASE,
)
_CONNECTING = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


class DownloadError(EdgespecError):
    """A model could not be downloaded."""

    exit_code = 3


class OtherAnswerError(ConnectionError):
    """The answer to a request for a file is something else."""


# --- addresses and settings -------------------------------------------------------------------------------------------


def check_endpoint() -> None:
    """Raise DownloadError for a HF_ENDPOINT with which huggingface_hub cannot even be imported, or finds nothing."""
    address = os.environ.get("HF_ENDPOINT")
    if address == "":  # as if it were not set; huggingface_hub takes it for an address
        del os.environ["HF_ENDPOINT"]
    elif address is not None and not shown(address):
        raise DownloadError("HF_ENDPOINT is not a web address", hint="set it to https://host/path, or unset it")


def endpoint() -> str:
    """The hub's address."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def shown(address: str) -> str:
    """Return a web address without name and password, so that it is safe to print. Empty for an invalid address."""
    match = _ADDRESS.fullmatch(address)
    return f"{match['scheme']}{match['place']}".rstrip("/") if match else ""


def page_of(repository: str) -> str:
    """The address of a repository, for messages."""
    return f"{shown(endpoint())}/{repository}"


def host() -> str:
    """The hub's name, for messages."""
    return shown(endpoint()).partition("://")[2]


def session() -> Any:
    """Return the HTTP client of huggingface_hub. Raises DownloadError if its settings cannot be used."""
    from huggingface_hub import get_session

    try:
        return get_session()
    except Exception as error:
        if not is_kind(error, "ImportError", "ValueError", "OSError", "InvalidURL"):
            raise
        why = getattr(error, "strerror", None) or str(error)
        if is_kind(error, "InvalidURL"):
            why = "one of them is not an address"  # its message may contain part of a password
        names = [name for name in os.environ if name.upper() in _CONNECTING and os.environ[name]]
        hint = f"check {', '.join(names)}" if names else ""
        raise DownloadError("the proxy or certificate settings cannot be used", why=why, hint=hint) from error


def token() -> str:
    """Return the user's token, if any. Raises DownloadError if it cannot be read or sent."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return ""
    try:
        found = get_token() or ""
    except (OSError, ValueError) as error:
        raise DownloadError("the token cannot be read", why=str(error), hint="is HF_HOME correct?") from error
    if not found.isascii():
        raise DownloadError("the token cannot be sent", why="it is not ASCII", hint="is HF_TOKEN correct?")
    return found


def headers() -> dict[str, str]:
    """The user agent, with the user's token if there is one."""
    agent = {"user-agent": f"edgespec/{version('edgespec')}", "accept-encoding": "identity"}
    return agent | ({"authorization": f"Bearer {found}"} if (found := token()) else {})


def timeout_s() -> float:
    """The longest time without data from the hub."""
    from huggingface_hub import constants

    return constants.HF_HUB_DOWNLOAD_TIMEOUT


def listed_models(words: str, timeout_s: float, **more: Any) -> list[dict[str, Any]]:
    """Return what the hub lists for these words. Raises what the client raises, and ValueError for another answer.

    `HfApi.list_models` would wait for ever.
    """
    params = {"search": words, "filter": "gguf", **more}
    answer = session().get(f"{endpoint()}/api/models", params=params, headers=headers(), timeout=timeout_s)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()
    if not isinstance(found, list) or not all(isinstance(each, dict) and "id" in each for each in found):
        raise ValueError("the answer is not a list of models")
    return found


# --- failures ---------------------------------------------------------------------------------------------------------


def http_error() -> type[Exception]:
    """The base class of request errors: that of httpx or httpx2, whichever huggingface_hub uses."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(each for each in HfHubHTTPError.__mro__ if each.__name__ == "HTTPError")


def is_kind(error: Exception, *names: str) -> bool:
    """True if an error is of one of these classes, which may be httpx's."""
    return any(each.__name__ in names for each in type(error).__mro__)


def status_of(error: Exception) -> int:
    """The status code of the answer; 0 if there was no answer."""
    return int(getattr(getattr(error, "response", None), "status_code", 0))


def header_of(error: Exception, name: str) -> str:
    """A header of the answer; empty if missing."""
    response = getattr(error, "response", None)
    return str(response.headers.get(name, "")) if response is not None else ""


def reason(error: Exception) -> str:
    """Say why a request failed, in a few words."""
    if status_of(error):
        return f"{host()} responds with status {status_of(error)}"
    if isinstance(error, OtherAnswerError):
        return f"{host()} does not send the file: {error} (does this network require a login?)"
    if is_kind(error, "TimeoutException"):
        return f"no data from {host()} for {timeout_s()} s"
    return f"{host()} cannot be reached" if is_kind(error, "ConnectError") else f"the connection to {host()} broke"


def how_to_resume(repository: str) -> str:
    """Say what happens to an incomplete download, as a part of a hint."""
    return "try again" + (": the part already downloaded is kept" if partial_bytes(repository) else "")


def explained(error: Exception, wanted: HubSpec) -> EdgespecError:
    """Turn a failed request into an error that a user can act on."""
    status = status_of(error)
    if status == 407 or is_kind(error, "ProxyError"):
        return _refused_by_proxy(error)
    if status:
        return _refused(error, wanted, status)
    again = how_to_resume(wanted.repository)
    if isinstance(error, OtherAnswerError):
        hint = f"does this network require a login? {again}"
        return DownloadError(f"{host()} does not send the file", why=str(error), hint=hint)
    if is_kind(error, "TimeoutException"):
        why = f"no data for {timeout_s()} s"
        return DownloadError(f"{host()} does not respond", why=why, hint=again)
    if is_kind(error, "ConnectError"):
        hint = f"is there a network? {again}"
        why = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        return DownloadError(f"{host()} cannot be reached", why=why, hint=hint)
    return DownloadError(f"the connection to {host()} broke", why=str(error), hint=again)


def _refused(error: Exception, wanted: HubSpec, status: int) -> EdgespecError:
    code, message = header_of(error, "X-Error-Code"), header_of(error, "X-Error-Message")
    again, page = how_to_resume(wanted.repository), page_of(wanted.repository)
    if code == "RevisionNotFound":
        what = f"{wanted.repository} has no revision '{wanted.revision}'"
        return ModelNotFoundError(what, hint=f"branches and tags: {page}/tree/main")
    if code == "EntryNotFound":
        return DownloadError(f"a file of {wanted.repository} is missing", why="the hub has listed it", hint="try again")
    if code == "GatedRepo" and _token_sent(error):
        why = "its owner has not granted access to the account of your token"
        hint = f"request access, or accept the licence, on {page}"
        return DownloadError(f"{wanted.repository} is gated", why=why, hint=hint)
    if code == "GatedRepo":
        hint = f"accept it on {page}, then log in: {HOW_TO_LOG_IN}"
        return DownloadError(f"{wanted.repository} is gated", why="its licence must be accepted first", hint=hint)
    if message.startswith("Invalid credentials"):
        return DownloadError(f"{host()} rejects the token", hint=f"get a new one: {HOW_TO_LOG_IN}, or unset HF_TOKEN")
    if status in (401, 404):
        return _not_found(error, wanted)
    if status == 403:
        what = f"{host()} denies access to {wanted.repository}"
        return DownloadError(what, why=message or "the response is status 403", hint=f"see {page}")
    if status == 429:
        more = "" if _token_sent(error) else f"; logged-in users ({HOW_TO_LOG_IN}) have a higher limit"
        what = f"{host()} limits the number of requests (rate limit)"
        return DownloadError(what, hint=f"wait a few minutes: {again}{more}")
    why = f"it responds with status {status}"  # the error's own message contains the address
    if status >= 500:
        return DownloadError(f"{host()} has a problem right now", why=why, hint=again)
    return DownloadError(f"{host()} refuses {wanted.repository}", why=why)


def _refused_by_proxy(error: Exception) -> DownloadError:
    names = [name for name in os.environ if name.upper() in _CONNECTING[:3] and os.environ[name]]
    named = " or ".join(names) or "HTTPS_PROXY"
    if status_of(error) == 407 or str(error).startswith("407"):
        hint = f"set them in {named}, for example http://name:password@host:port"
        return DownloadError("the proxy requires a user name and password", hint=hint)
    return DownloadError(f"the proxy cannot reach {host()}", why=str(error), hint=f"check {named}")


def _not_found(error: Exception, wanted: HubSpec) -> ModelNotFoundError:
    from huggingface_hub import constants

    name = re.sub("[-_.]?gguf$", "", wanted.repository.rpartition("/")[2], flags=re.IGNORECASE)
    try:
        found = [str(each["id"]) for each in listed_models(name, constants.HF_HUB_ETAG_TIMEOUT, limit=5)]
    except (http_error(), ValueError):  # then no similar names are suggested
        found = []
    similar = [each for each in found if each != wanted.repository]
    token = "your token may not have access" if _token_sent(error) else f"it needs a token: {HOW_TO_LOG_IN}"
    return ModelNotFoundError(
        f"there is no repository {wanted.repository} on {host()}",
        why=f"or it is private, and {token}",
        hint=f"did you mean {', '.join(similar)}?" if similar else "",
    )


def _token_sent(error: Exception) -> bool:
    response = getattr(error, "response", None)
    return response is not None and "authorization" in response.request.headers
