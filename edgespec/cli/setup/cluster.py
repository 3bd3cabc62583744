"""The option `--over`: answer on the nodes of a Ray cluster instead of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.cli.options.common import option
from edgespec.cli.setup.servers import Members
from edgespec.cli.terminal.output import Output
from edgespec.errors import UsageError
from edgespec.models.names.spec import lasting
from edgespec.settings import AUTO_DRAFT, LoadSettings, Request

OVER = option(
    "Server", "--over", "over", metavar="ray[://HOST:PORT]",
    advanced=True,
    help="Answer on the nodes of a Ray cluster: this machine's cluster, a new one, or the cluster at an address.",
)  # fmt: skip


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
) -> Members:
    """Load the model on the nodes, and return once one node has loaded it. Raises EdgespecError."""
    from edgespec.cluster.library import Ray, checked_address
    from edgespec.cluster.nodes import Nodes
    from edgespec.remote.fleet import Fleet

    output.progress("joining the cluster", None)
    try:
        ray = Ray(checked_address(over))
        nodes = Nodes(ray, _lasting(settings), depend_on, may_download=may_download)
        try:
            if ray.is_started_here:
                output.note("this machine belongs to no Ray cluster; starting one")
            output.progress("loading the model on the nodes", None)
            fleet = Fleet(nodes.first(cancel), kind="node", recruits=nodes)
        except BaseException:
            nodes.close()
            raise
    finally:
        output.end_progress()
    return Members(fleet, asked, output)


def _lasting(settings: LoadSettings) -> LoadSettings:
    """Name files by absolute paths, so that they are the same on every node."""
    draft = settings.draft_model
    draft = draft if draft is None or draft == AUTO_DRAFT else lasting(draft)
    return replace(settings, model=lasting(settings.model), draft_model=draft)
