"""The options `--server` and `--over`: use the models of servers or cluster nodes instead of this machine's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.cancel import CancelFlag
from edgespec.cli.options.command import Call
from edgespec.cli.options.common import Option, option
from edgespec.cli.setup.models import answer_as_its_own
from edgespec.cli.terminal.output import Output
from edgespec.errors import LostError, UsageError
from edgespec.gguf_file.adapters import parse_adapters
from edgespec.models.names.source import lasting
from edgespec.settings import AUTO_DRAFT, LoadSettings, Request

if TYPE_CHECKING:
    from edgespec.events import Progress
    from edgespec.llm.fleet import Fleet
    from edgespec.remote.model import RemoteModel

VARIABLE = "EDGESPEC_API_KEY"
DRAFTING = ("spec_type", "pace", "spec_draft_n_max")
SENT = ("model", "verify", *DRAFTING)
"""The options of loading and drafting that are sent with each request."""

OVER = option(
    "Server", "--over", "over", metavar="ray[://HOST:PORT]", advanced=True,
    help="Answer on the nodes of a Ray cluster: this machine's cluster, a new one, or the cluster at an address.",
)  # fmt: skip


def server_option(help: str, *, multiple: bool = False) -> Option:
    """Return the option `--server`."""
    return option("Server", "--server", metavar="URL", multiple=multiple, help=f"{help} {VARIABLE} is its key.")


def check_options(call: Call) -> None:
    """Refuse typed options that have no effect with a server. Raises UsageError."""
    values = call.values
    if not values["server"]:
        return
    idle = [
        max((*each.opts, *each.secondary_opts) if values[str(each.name)] is not False else each.secondary_opts, key=len)
        for each in call.typed_options()
        if each.section in ("Model", "Speculation") and each.name not in SENT
    ]
    if idle:
        raise UsageError(
            f"{', '.join(idle)} cannot be combined with --server",
            why="the server has loaded its model already",
            hint="these are options of 'edgespec serve'",
        )


def open_servers(call: Call, urls: Sequence[str], *, also: Sequence[str] = ()) -> list[RemoteModel]:
    """Open the model of -m, one of `also`, or the first model, on each server that can be reached.

    Options that the user has not set become those of the first server. Raises EdgespecError.
    """
    from edgespec.remote.connection import base_url
    from edgespec.remote.model import RemoteModel

    values = call.values
    given = {name: values[name] for name in DRAFTING if values.get(name) is not None}
    settings = LoadSettings(values["model"] if call.is_typed("model") else "", **given)
    key, found, lost = _key(), list[RemoteModel](), list[LostError]()
    with ExitStack() as opened:
        for url in dict.fromkeys(map(base_url, urls)):
            try:
                found.append(opened.enter_context(RemoteModel(url, key, settings, also=also)))
            except LostError as away:
                lost.append(away)
        if not found:
            raise lost[0]
        opened.pop_all()
    for error in lost:
        call.output.note(f"{error.what}: continuing without this server")
    values["model"] = found[0].settings.model
    answer_as_its_own(call.ctx, values)
    values |= {name: value for name, value in found[0].defaults.items() if call.is_unset(name)}
    return found


def opener(url: str) -> Callable[[LoadSettings, Progress | None, CancelFlag | None], RemoteModel]:
    """Return a function that opens models of a server for a chat."""
    from edgespec.remote.model import RemoteModel

    key = _key()
    return lambda settings, progress, cancel: RemoteModel(url, key, settings, cancel)


def _key() -> str:
    from edgespec.remote.connection import checked_key

    key = os.environ.get(VARIABLE, "")
    return checked_key(key, VARIABLE) if key else ""


# --- cluster nodes ----------------------------------------------------------------------------------------------------


def check_over(values: Mapping[str, Any]) -> None:
    """Raise UsageError if the value is not a cluster, cannot be combined with other options, or Ray is missing."""
    if values["over"] is None:
        return
    if values["server"]:
        raise UsageError("--over and --server cannot be combined", hint="use one of them")
    if values["rpc"]:
        why = "an RPC worker serves one program at a time, and each node runs one"
        raise UsageError("--over and --rpc cannot be combined", why=why, hint="use one of them")
    from edgespec.cluster.library import checked_address

    checked_address(values["over"])


def open_nodes(
    over: str,
    settings: LoadSettings,
    depend_on: Mapping[str, Any],
    asked: Request,
    output: Output,
    cancel: CancelFlag,
    *,
    may_download: bool,
) -> Fleet:
    """Load the model on the nodes, and return once one node has loaded it. Raises EdgespecError."""
    from edgespec.cli.setup.job_models import fleet_of
    from edgespec.cluster.library import Ray, checked_address
    from edgespec.cluster.nodes import Nodes

    with output.showing_progress():
        output.progress("joining the cluster", None)
        ray = Ray(checked_address(over))
        nodes = Nodes(ray, lasting_settings(settings), depend_on, may_download=may_download)
        try:
            if ray.is_started_here:
                output.note("this machine belongs to no Ray cluster; starting one")
            output.progress("loading the model on the nodes", None)
            found = nodes.first(cancel)
        except BaseException:
            nodes.close()
            raise
    return fleet_of(found, asked, output, kind="node", recruits=nodes)


def lasting_settings(settings: LoadSettings) -> LoadSettings:
    """Name files by absolute paths, so that they are the same for a process in another folder. Raises UsageError."""
    draft, corpus = settings.draft_model, settings.corpus
    draft = draft if draft is None or draft == AUTO_DRAFT else lasting(draft)
    if corpus is not None and (file := Path(corpus).expanduser()).is_file():
        corpus = str(file.absolute())
    mmproj = settings.mmproj
    if mmproj not in (None, "none"):
        mmproj = str(Path(mmproj).expanduser().absolute())
    template = settings.chat_template_file
    template = template and str(Path(template).expanduser().absolute())
    lora = [f"{each.name}={each.path.absolute()}={each.scale}" for each in parse_adapters(settings.lora)]
    model = lasting(settings.model)
    return replace(
        settings,
        model=model,
        draft_model=draft,
        corpus=corpus,
        mmproj=mmproj,
        chat_template_file=template,
        lora=(*lora,),
    )
