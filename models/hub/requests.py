"""Requests to the Hugging Face hub: their headers, what failures mean for a user, and when they are repeated."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from edgespec.errors import EdgespecError, ModelNotFoundError
from edgespec.files.proxies import PROXIES, given, proxy_errors, proxy_for, reach_directly
from edgespec.models.hub.cache import partial_bytes
from edgespec.models.names.source import HubSpec

if TYPE_CHECKING:
    import httpx2

Tell = Callable[[str], object]  # takes notes for the user
HOW_TO_LOG_IN = "hf auth login (or set HF_TOKEN)"
_ADDRESS = re.compile(
    r"(?P<scheme>https?://)(?:[^/?#]*@)?(?P<place>(?:[\w.-]+|\[[\da-f:.]+\])(?::\d{1,5})?(?:/[^?#@\s]*)?)",
    re.IGNORECASE,
)


class DownloadError(EdgespecError):
    """A model could not be downloaded."""

    exit_code = 3


class OtherAnswerError(ConnectionError):
    """The answer to a request for a file is something else."""


# --- addresses and settings -------------------------------------------------------------------------------------------


def check_endpoint() -> None:
    """Raise DownloadError for a HF_ENDPOINT with which huggingface_hub cannot even be imported, or finds nothing."""
    address = os.environ.get("HF_ENDPOINT")
    reach_directly(address or "")
    if address == "":  # as if it were not set; huggingface_hub takes it for an address
        del os.environ["HF_ENDPOINT"]
    elif address is not None and not shown(address):
        raise DownloadError("HF_ENDPOINT is not a web address", hint="set it to https://host/path, or unset it")


def shown(address: str) -> str:
    """Return a web address without name and password, so that it is safe to print. Empty for an invalid address."""
    match = _ADDRESS.fullmatch(address)
    return f"{match['scheme']}{match['place']}".rstrip("/") if match else ""


def page_of(repository: str) -> str:
    """The address of a repository, for messages."""
    from huggingface_hub import constants

    return f"{shown(constants.ENDPOINT)}/{repository}"


def search_page(repository: str) -> str:
    """The address of the hub's search for a repository with GGUF files."""
    return f"{page_of('models')}?library=gguf&search={repository.rpartition('/')[2]}"


def host() -> str:
    """The hub's name, for messages."""
    return page_of("").removesuffix("/").partition("://")[2]


def session() -> httpx2.Client:
    """Return the HTTP client of huggingface_hub. Raises DownloadError if its settings cannot be used."""
    from huggingface_hub import get_session

    with proxy_errors(DownloadError):
        return get_session()


def headers() -> dict[str, str]:
    """The user agent, with the user's token if there is one. Raises DownloadError if it cannot be read or sent."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    try:
        sent = build_hf_headers(library_name="edgespec", library_version=version("edgespec"))
        sent.get("authorization", "").encode("ascii")
    except (OSError, ValueError) as error:
        raise DownloadError("the token cannot be used", why=str(error), hint="check HF_TOKEN and HF_HOME") from error
    return sent | {"accept-encoding": "identity"}


def timeout_s() -> float:
    """The longest time without data from the hub."""
    from huggingface_hub import constants

    return constants.HF_HUB_DOWNLOAD_TIMEOUT


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
    return int(getattr(_response(error), "status_code", 0))


def header_of(error: Exception, name: str) -> str:
    """A header of the answer; empty if missing."""
    response = _response(error)
    return str(response.headers.get(name, "")) if response is not None else ""


def _response(error: Exception) -> Any:
    return getattr(error, "response", None)


def reason(error: Exception) -> str:
    """Say why a request failed, in a few words."""
    if status_of(error):
        return f"{host()} responds with status {status_of(error)}"
    if isinstance(error, OtherAnswerError):
        return f"{host()} does not send the file: {error} (does this network require a login?)"
    if is_kind(error, "TimeoutException"):
        return f"no data from {host()} for {timeout_s()} s"
    return f"{host()} cannot be reached" if is_kind(error, "ConnectError") else f"the connection to {host()} broke"


def missing_offline(spec: str, how: str = "") -> DownloadError:
    """The error for a model that would have to be downloaded; `how` names the command, `edgespec pull` by default."""
    why = "--offline or HF_HUB_OFFLINE prevents the download"
    return DownloadError(
        f"{spec} is not on this machine", why=why, hint=f"without them: {how or f'edgespec pull {spec}'}"
    )


def how_to_resume(repository: str) -> str:
    """Say what happens to an incomplete download, as a part of a hint."""
    return "try again" + (": the part already downloaded is kept" if partial_bytes(repository) else "")


def explained(error: Exception, wanted: HubSpec) -> EdgespecError:
    """Turn a failed request into an error that a user can act on."""
    status, code, message = status_of(error), header_of(error, "X-Error-Code"), header_of(error, "X-Error-Message")
    repository, again, page = wanted.repository, how_to_resume(wanted.repository), page_of(wanted.repository)
    if status == 407 or is_kind(error, "ProxyError"):
        names = given(*PROXIES)
        needs_login = status == 407 or str(error).startswith("407")
        why = "it requires a user name and password" if needs_login else str(error)
        hint = f"check {' or '.join(names) or 'HTTPS_PROXY'}, for example http://name:password@host:port"
        return DownloadError(f"the proxy cannot reach {host()}", why=why, hint=hint)
    if not status:
        is_said = isinstance(error, OtherAnswerError) or is_kind(error, "TimeoutException")
        why = "" if is_said else re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        through = proxy_for(f"{page_of('')}") if is_kind(error, "ConnectError", "ConnectTimeout") else ""
        what = f"{reason(error)} through {through}" if through else reason(error)
        return DownloadError(what, why=why, hint=again)
    has_token = "authorization" in _response(error).request.headers
    log_in = "" if has_token else f"log in: {HOW_TO_LOG_IN}"
    if code == "RevisionNotFound":
        what = f"{repository} has no revision '{wanted.revision}'"
        return ModelNotFoundError(what, hint=f"branches and tags: {page}/tree/main")
    if code == "GatedRepo":
        why = "the account of your token has no access" if has_token else "its licence must be accepted first"
        hint = "; then ".join(filter(None, (f"request access, or accept the licence, on {page}", log_in)))
        return DownloadError(f"{repository} is gated", why=why, hint=hint)
    if message.startswith("Invalid credentials"):
        return DownloadError(f"{host()} rejects the token", hint=f"get a new one: {HOW_TO_LOG_IN}, or unset HF_TOKEN")
    if status in (401, 404) and code != "EntryNotFound":
        why = f"or it is private, and {'your token may not have access' if has_token else 'you are not logged in'}"
        hint = "; ".join(filter(None, (f"search: {search_page(repository)}", log_in)))
        return ModelNotFoundError(f"there is no repository {repository} on {host()}", why=why, hint=hint)
    if status == 429 or status >= 500:
        what = "limits the number of requests (rate limit)" if status == 429 else "has a problem right now"
        hint = f"wait a few minutes: {again}"
        return DownloadError(f"{host()} {what}", why=f"it responds with status {status}", hint=hint)
    why = message or f"it responds with status {status}"  # the error's own message contains the address
    return DownloadError(f"{host()} denies access to {repository}", why=why, hint=f"see {page}")


# --- repeated requests ------------------------------------------------------------------------------------------------

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
LONGEST_ASKED_S = 300.0  # the hub counts requests over five minutes
FETCHING_S = 600.0  # of waits without a byte: a network may be gone that long
LOOKING_S = 60.0  # of waits before the download starts, while the user may be watching

_PASSING = ("TimeoutException", "NetworkError", "RemoteProtocolError", "ConnectionError")


class Patience:
    """The waits between the failures of one request, each longer than the one before, up to `patience_s` in all.

    The time in which a laptop sleeps is not counted. `tell` receives each reason once; reasons that are in `reported`
    are left out.
    """

    def __init__(self, patience_s: float, tell: Tell, reported: set[str] | None = None) -> None:
        self._patience_s, self._tell = patience_s, tell
        self._reported = set[str]() if reported is None else reported
        self.renew()

    def renew(self) -> None:
        """Start again with short waits, after data has come."""
        self._left_s = self._patience_s
        self._next_s = FIRST_WAIT_S

    def wait_s(self, error: Exception) -> float | None:
        """Return how long to wait after this failure, which is reported; None if a retry is useless."""
        status = status_of(error)
        passes = status in (408, 429) or status >= 500 or is_kind(error, *_PASSING)
        if not passes or self._left_s <= 0:
            return None
        wait_s = max(self._next_s, min(_requested_wait_s(error), LONGEST_ASKED_S))
        self._next_s = min(2 * self._next_s, LONGEST_WAIT_S)
        self._left_s -= wait_s
        if (why := reason(error)) not in self._reported:
            self._reported.add(why)
            left = f"{self._left_s / 60:.0f} minutes" if self._left_s >= 90 else f"{self._left_s:.0f} s"
            self._tell(f"{why}: retrying in {wait_s:.0f} s, giving up in {left} if no data arrives")
        return wait_s


def _requested_wait_s(error: Exception) -> float:
    """Return how long the hub asks to wait."""
    after = header_of(error, "Retry-After") or next(
        iter(re.findall(r"\br=0;\s*t=(\d+)", header_of(error, "RateLimit"))), ""
    )
    return float(after) if after.isdigit() else 0.0
