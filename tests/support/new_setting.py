"""Declares a setting that the program does not have, and prints where it is known then.

    python tests/support/new_setting.py MODULE FIELD

The setting is declared in the source of MODULE, before FIELD, as a developer would write it; nothing else is changed.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

DECLARED = '    daring: float = setting(0.0, Facts("number", "How daring an answer is.", least=0, most=1))\n'
SET: dict[str, Any] = {"daring": 0.5}


def declare(module: str, field: str) -> None:
    """Let the import of a module see the declaration in its source."""
    load, place = SourceFileLoader.get_code, f"    {field}: "

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        if name != module:
            return load(loader, name)
        before, found, after = str(loader.get_source(name)).partition(place)
        return compile(before + DECLARED + found + after, loader.path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def places(*, is_sampling: bool) -> dict[str, Any]:
    """Return what each place says about the setting."""
    from edgespec.batch.sidecar import texts_depend_on
    from edgespec.chat.settings import SETTINGS, ChatSettings, setting, with_changes
    from edgespec.cli.commands.run import RunOptions, run
    from edgespec.cli.options.command import Call
    from edgespec.core.sampling import SamplingSettings
    from edgespec.errors import UsageError
    from edgespec.llm.options import request_of
    from edgespec.remote.wire import body_of
    from edgespec.requests.fields import Fields
    from edgespec.requests.known_fields import CHAT
    from edgespec.requests.row_settings import request_fields
    from edgespec.serve.native import generation_settings
    from edgespec.settings import Request
    from edgespec.validation import check_request

    def value(of: Any) -> Any:
        return getattr(of.sampling if is_sampling else of, "daring")  # noqa: B009 - no class has it for mypy

    def refusal(of: Any) -> str:
        try:
            return str(of())
        except UsageError as error:
            return error.line

    options: Any = SET
    read = Request("x", **request_fields(SET, SamplingSettings()))
    of_chat, known = with_changes(ChatSettings(), {"daring": "0.5"}), Fields(SET, CHAT)
    typed = Call(run.make_context("run", ["--daring", "0.5", "hello"]), RunOptions).options.answer
    [option] = [each for each in run.params if each.name == "daring"]
    return {
        "option": [option.opts, getattr(option, "help", ""), value(typed)],
        "out of range": refusal(lambda: check_request(request_of(options | {"daring": 2}), 10)),
        "python": value(request_of(options)),
        "row": value(read),
        "body": [value(Request(**known.request(Request()))), known.notes],
        "chat": [value(of_chat), setting("daring").show(of_chat), value(Request("x", **of_chat.of_answers()))],
        "chat, out of range": refusal(lambda: with_changes(of_chat, {"daring": "2"})),
        "chat, saved": value(ChatSettings.from_json(json.loads(json.dumps(of_chat.as_json())))),
        "chat, help": [item.help for item in SETTINGS if item.field == "daring"],
        "edgespec's server": body_of(read, is_own=True)[1]["daring"],
        "another server": refusal(lambda: body_of(read, is_own=False)[1]["daring"]),
        "sidecar": [
            texts_depend_on({}, each, chat=False, system="").get("daring") for each in (read, Request("x"))
        ],
        "properties": generation_settings(read)["daring"],
    }  # fmt: skip


if __name__ == "__main__":
    declare(*sys.argv[1:])
    print(json.dumps(places(is_sampling=sys.argv[1] == "edgespec.core.sampling")))
