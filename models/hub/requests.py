"""Requests to the Hugging Face hub: their headers, and what their failures mean for a user."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sysconfig
from typing import Any

from edgespec import __version__
from edgespec.errors import EdgespecError, ModelNotFoundError
from edgespec.models.hub.cache import begun_files
from edgespec.models.names.spec import HubSpec

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


def check_endpoint() -> None:
    """Raises DownloadError for a HF_ENDPOINT with which huggingface_hub cannot even be imported, or finds nothing."""
    address = os.environ.get("HF_ENDPOINT")
    if address == "":  # as if it were not set; huggingface_hub takes it for an address
        del os.environ["HF_ENDPOINT"]
    elif address is not None and not shown(address):
        raise DownloadError("HF_ENDPOINT is not a web address", hint="set it to https://host/path, or unset it")


def shown(address: str) -> str:
    """A web address that is safe to print: without name and password. Empty for an invalid one."""
    match = _ADDRESS.fullmatch(address)
    return f"{match['scheme']}{match['place']}".rstrip("/") if match else ""


def page_of(repository: str) -> str:
    """The address of a repository, for messages."""
    return f"{shown(endpoint())}/{repository}"


def host() -> str:
    """The hub's name, for messages."""
    return shown(endpoint()).partition("://")[2]


def session() -> Any:
    """The Client, httpx's or httpx2's, that sends requests. Raises DownloadError if its settings cannot be used."""
    from huggingface_hub import get_session

    try:
        return get_session()
    except Exception as error:
        if not kind(error, "ImportError", "ValueError", "OSError", "InvalidURL"):
            raise
        why = getattr(error, "strerror", None) or str(error)
        if kind(error, "InvalidURL"):
            why = "one of them is not an address"  # its message may contain part of a password
        names = [name for name in os.environ if name.upper() in _CONNECTING and os.environ[name]]
        hint = f"check {', '.join(names)}" if names else ""
        raise DownloadError("the proxy or certificate settings cannot be used", why=why, hint=hint) from error


def token() -> str:
    """The user's token, if any. Raises DownloadError if it cannot be read or sent."""
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
    agent = {"user-agent": f"edgespec/{__version__}", "accept-encoding": "identity"}
    return agent | ({"authorization": f"Bearer {found}"} if (found := token()) else {})


def timeout_s() -> float:
    """How long the hub may be silent."""
    from huggingface_hub import constants

    return constants.HF_HUB_DOWNLOAD_TIMEOUT


def http_error() -> type[Exception]:
    """The base class of request errors: httpx's, or httpx2's, whichever huggingface_hub uses."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(each for each in HfHubHTTPError.__mro__ if each.__name__ == "HTTPError")


def how_to_log_in() -> str:
    """The command to log in, in the form that works here: the program may only exist beside Python."""
    program = "hf" if shutil.which("hf") else shutil.which("hf", path=sysconfig.get_path("scripts"))
    if not program:
        return f"set HF_TOKEN to a token from {shown(endpoint())}/settings/tokens"
    return f"{shlex.quote(program) if os.name != 'nt' else program} auth login (or set HF_TOKEN)"


def kind(error: Exception, *names: str) -> bool:
    """Whether an error is of one of these classes, which may be httpx's."""
    return any(each.__name__ in names for each in type(error).__mro__)


def status_of(error: Exception) -> int:
    """The status code; 0 if there was no answer."""
    return int(getattr(getattr(error, "response", None), "status_code", 0))


def header_of(error: Exception, name: str) -> str:
    """A header of the answer; empty if missing."""
    response = getattr(error, "response", None)
    return str(response.headers.get(name, "")) if response is not None else ""


def reason(error: Exception) -> str:
    """Why a request failed, in a few words."""
    if status_of(error):
        return f"{host()} responds with status {status_of(error)}"
    if isinstance(error, OtherAnswerError):
        return f"{host()} does not send the file: {error} (does this network require a login?)"
    if kind(error, "TimeoutException"):
        return f"no data from {host()} for {timeout_s()} s"
    return f"{host()} cannot be reached" if kind(error, "ConnectError") else f"the connection to {host()} broke"


def how_to_resume(repository: str) -> str:
    """What happens to an incomplete download, as a part of a hint."""
    if any(path.stat().st_size for path in begun_files(repository)):
        return "the part already downloaded is kept, and the same command resumes"
    return "the same command tries again"


def explained(error: Exception, wanted: HubSpec) -> EdgespecError:
    """A failed request as an error that a user can act on."""
    again = how_to_resume(wanted.repository)
    code, status, page = header_of(error, "X-Error-Code"), status_of(error), page_of(wanted.repository)
    if code == "RevisionNotFound":
        return ModelNotFoundError(
            f"{wanted.repository} has no revision '{wanted.revision}'", hint=f"branches and tags: {page}/tree/main"
        )
    if code == "EntryNotFound":
        return DownloadError(f"a file of {wanted.repository} is missing", why="the hub has listed it", hint="try again")
    if code == "GatedRepo":
        return _gated(error, wanted, page)
    if header_of(error, "X-Error-Message").startswith("Invalid credentials"):
        return DownloadError(f"{host()} rejects the token", hint=f"get a new one: {how_to_log_in()}, or unset HF_TOKEN")
    if status == 407 or kind(error, "ProxyError"):
        return _refused_by_proxy(error)
    if status in (401, 404):
        return _not_found(error, wanted)
    if status == 403:
        why = header_of(error, "X-Error-Message") or "the response is status 403"
        return DownloadError(f"{host()} denies access to {wanted.repository}", why=why, hint=f"see {page}")
    if status == 429:
        more = "" if _token_sent(error) else f"; logged-in users ({how_to_log_in()}) have a higher limit"
        return DownloadError(
            f"{host()} limits the number of requests (rate limit)", hint=f"wait a few minutes: {again}{more}"
        )
    if status >= 500:
        return DownloadError(
            f"{host()} has a problem right now", why=f"it responds with status {status}", hint=f"try later: {again}"
        )
    if status:  # the error's message contains the address
        return DownloadError(f"{host()} refuses {wanted.repository}", why=f"it responds with status {status}")
    if isinstance(error, OtherAnswerError):
        hint = f"does this network require a login? {again}"
        return DownloadError(f"{host()} does not send the file", why=str(error), hint=hint)
    if kind(error, "TimeoutException"):
        return DownloadError(
            f"{host()} does not respond", why=f"no data for {timeout_s()} s", hint=f"try later: {again}"
        )
    if kind(error, "ConnectError"):
        hint = f"is there a network? {again}"
        return DownloadError(f"{host()} cannot be reached", why=str(error), hint=hint)
    return DownloadError(f"the connection to {host()} broke", why=str(error), hint=again)


def _gated(error: Exception, wanted: HubSpec, page: str) -> DownloadError:
    if _token_sent(error):
        why = "its owner has not granted access to the account of your token"
        hint = f"request access, or accept the licence, on {page}"
    else:
        why = "its licence must be accepted first"
        hint = f"accept it on {page}, then log in: {how_to_log_in()}"
    return DownloadError(f"{wanted.repository} is gated", why=why, hint=hint)


def _refused_by_proxy(error: Exception) -> DownloadError:
    names = [name for name in os.environ if name.upper() in _CONNECTING[:3] and os.environ[name]]
    named = " or ".join(names) or "HTTPS_PROXY"
    if status_of(error) == 407 or str(error).startswith("407"):
        hint = f"set them in {named}, for example http://name:password@host:port"
        return DownloadError("the proxy requires a user name and password", hint=hint)
    return DownloadError(f"the proxy cannot reach {host()}", why=str(error), hint=f"check {named}")


def _not_found(error: Exception, wanted: HubSpec) -> ModelNotFoundError:
    similar = [name for name in _similar(wanted.repository) if name != wanted.repository]
    token = "your token may not have access" if _token_sent(error) else f"it needs a token: {how_to_log_in()}"
    return ModelNotFoundError(
        f"there is no repository {wanted.repository} on {host()}",
        why=f"or it is private, and {token}",
        hint=f"did you mean {', '.join(similar)}?" if similar else "",
    )


def _similar(repository: str) -> list[str]:
    """Repositories with GGUF files and a similar name; none if the hub does not say."""
    from huggingface_hub import constants

    name = re.sub("[-_.]?gguf$", "", repository.rpartition("/")[2], flags=re.IGNORECASE)
    try:
        answer = session().get(  # HfApi.list_models would wait forever
            f"{endpoint()}/api/models",
            params={"search": name, "filter": "gguf", "limit": 5},
            headers=headers(),
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        return [str(each["id"]) for each in answer.json()]
    except (http_error(), ValueError, KeyError, TypeError):
        return []


def endpoint() -> str:
    """The hub's address."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def _token_sent(error: Exception) -> bool:
    response = getattr(error, "response", None)
    return response is not None and "authorization" in response.request.headers
