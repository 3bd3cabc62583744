"""The format of llama.cpp's server (/completion and /infill), which is read as Completions with other fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from edgespec.events import TokenEvent
from edgespec.requests.bad_input import BadInputError, JsonObject, UnsupportedError, wrong
from edgespec.requests.fields import Fields
from edgespec.requests.forms import InfillFields
from edgespec.requests.known_fields import COMPLETION, INFILL
from edgespec.requests.openai import token_logprob
from edgespec.runtime.prompts import LONGEST_TOKEN
from edgespec.serve.chat import Call, Piece, Writer, timings
from edgespec.serve.errors import Names
from edgespec.serve.native import generation_settings
from edgespec.serve.openai import text_of
from edgespec.serve.prompts import around_gap
from edgespec.serve.served import Served
from edgespec.settings import LARGEST

# --- requests ---------------------------------------------------------------------------------------------------------


def completion_call(body: JsonObject, model: Served) -> Call:
    """Read a body of /completion. Raises BadInputError."""
    return _call_of(Fields(body, COMPLETION), model)


def infill_call(body: JsonObject, model: Served) -> Call:
    """Read a body of /infill. Raises BadInputError, and ApiError for a model that does not generate."""
    model.check_generates()  # else the error would be about tokens that the model lacks
    return _call_of(infill_prompt(body, model), model)


def _call_of(fields: Fields, model: Served) -> Call:
    special = fields.flag("special", True)  # the client has usually applied a chat template
    wanted = fields.take("response_fields", [])
    if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
        raise wrong("response_fields", "be a list of names", wanted)
    call = text_of(Fields(fields.rest() | {"special": special}, notes=fields.notes), model)
    if call.echoes and call.wants_tokens:
        raise UnsupportedError("echo", "/v1/completions returns the log-probabilities of a prompt")
    call.returns_tokens = True
    return call


# --- answers ----------------------------------------------------------------------------------------------------------


class CompletionObject(Writer):
    """Writes the answers to a call in the format of llama.cpp's server: one object, or a list for several answers."""

    names: ClassVar[Names] = {
        "messages": "prompt",
        "prompt_tokens": "prompt",
        "logprobs": "n_probs",
        "n": "n_cmpl",
    }

    def __init__(self, call: Call, body: JsonObject) -> None:
        super().__init__(call, body)
        self._returns_tokens = body.get("return_tokens") is True
        names = body.get("response_fields")
        self._fields: Sequence[str] = names if isinstance(names, list) else ()

    def whole(self) -> object:
        made = [
            self._wanted(
                self._last(index, "".join(answer.texts), _ids(answer.tokens) if self._returns_tokens else [])
                | self._probabilities(answer.tokens)
            )
            for index, answer in enumerate(self.answers)
        ]
        return made[0] if len(made) == 1 else made

    def chunks(self, piece: Piece) -> Iterator[dict[str, object]]:
        self.take(piece)
        if piece.progress is not None:
            part = {"index": piece.index, "content": "", "tokens": [], "stop": False}
            yield part | {"prompt_progress": piece.progress}
        if piece.text or piece.tokens:
            part = {"index": piece.index, "content": piece.text, "tokens": _ids(piece.tokens), "stop": False}
            yield part | self._probabilities(piece.tokens)
        if piece.end is not None:
            yield self._wanted(self._last(piece.index, "", []))

    def _last(self, index: int, content: str, tokens: Sequence[int]) -> dict[str, object]:
        answer = self.answers[index]
        end, stats = answer.ended, answer.ended.stats
        kind = "limit" if end.reason == "length" else "word" if end.cut else "eos"
        return {
            "index": index,
            "content": content,
            "tokens": tokens,
            "id_slot": -1,  # answers do not know their slot
            "stop": True,
            "model": self.call.model,
            "tokens_predicted": end.n_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "prompt": self.call.prompt(index),
            "has_new_line": any("\n" in text for text in answer.texts),
            **end.more,
            "truncated": kind == "limit" and stats.prompt_tokens + end.n_tokens >= self.call.n_ctx,
            "stop_type": kind,
            "stopping_word": end.cut,
            "tokens_cached": stats.cached_tokens,
            "generation_settings": generation_settings(self.call.requests[index]),
            "timings": timings(stats),
        }

    def _wanted(self, whole: dict[str, object]) -> dict[str, object]:
        """Return the fields that the client wants, all unless it names some. A name such as timings/prompt_n is that of
        a field in another one."""
        if not self._fields:
            return whole
        inner = {name: value for name, value in whole.items() if isinstance(value, dict)}
        names = whole | {f"{outer}/{name}": value for outer, found in inner.items() for name, value in found.items()}
        return {name: names[name] for name in self._fields if name in names}

    def _probabilities(self, tokens: Sequence[TokenEvent]) -> dict[str, object]:
        """Return the field for the log-probabilities of tokens, if the client wants them."""
        if not self.call.wants_tokens:
            return {}
        made = []
        for event in tokens:
            known = token_logprob(event, self.call.token_bytes)
            others = zip(event.top_logprobs, known["top_logprobs"], strict=True)
            top = [{"id": id, **other} for (id, _), other in others]
            made.append({"id": event.id, **known, "top_logprobs": top})
        return {"completion_probabilities": made}


def _ids(tokens: Sequence[TokenEvent]) -> list[int]:
    return [event.id for event in tokens]


# --- /infill ----------------------------------------------------------------------------------------------------------

WINDOW = 2048  # tokens around the gap, in llama.cpp's server the size of a batch
PREFIX_SHARE = 3 / 4  # of these tokens
MARKS = 4  # BOS and the control tokens around the gap
HEADS = 32  # tokens before the prefix if there are no other files
MOST_FILES = 1024
PROJECT, FILE, OTHER_FILE = "myproject\n", "filename\n", "tmp"  # llama.cpp's server has no fields for these names
SNIPPET = "\n\n--- snippet ---\n\n"


def infill_prompt(body: JsonObject, model: Served) -> Fields:
    """Return the fields of a body of /infill as those of a completion. Raises BadInputError."""
    fields = Fields(body, INFILL)
    for name in ("input_prefix", "input_suffix"):
        if name not in fields:
            raise BadInputError(f"{name} is missing", name)
    form = fields.read(InfillFields)
    prefix, suffix = form.input_prefix, form.input_suffix
    files = _files(fields.take("input_extra", []))
    most = fields.integer("max_tokens", model.defaults.max_tokens, -1, LARGEST)
    tokenize = model.vocabulary.tokenize
    begun = tokenize(form.prompt, parse_special=True)
    n_answer = min(max(most, 0), model.n_ctx // 2)
    room = model.n_ctx - n_answer - MARKS
    window = max(0, min(WINDOW, room // 2 if files else room - HEADS))
    n_prefix = max(1, int(PREFIX_SHARE * window))
    before = tokenize(prefix[-LONGEST_TOKEN * n_prefix :])[-n_prefix:] + begun
    after = tokenize(suffix[: LONGEST_TOKEN * window])[: max(0, window - n_prefix - 2 - len(begun))]
    context = _context(model, files, max(0, room - window - n_answer))
    tokens = [*context, *around_gap(model, "input_prefix", before, after)]
    return Fields(fields.rest() | {"prompt": tokens, "max_tokens": most}, notes=fields.notes)


def _files(given: object) -> list[tuple[str, str]]:
    """Return the names and the texts of other files. Raises BadInputError."""
    if not isinstance(given, list) or len(given) > MOST_FILES or not all(isinstance(file, dict) for file in given):
        raise wrong("input_extra", f"be a list of at most {MOST_FILES} objects with filename and text", given)
    files = [Fields(file, where=f"input_extra[{index}]") for index, file in enumerate(given)]
    for index, file in enumerate(files):
        if "text" not in file:
            raise BadInputError(f"text of input_extra[{index}] is missing", f"input_extra[{index}].text")
    return [(file.text("filename", OTHER_FILE), file.text("text")) for file in files]


def _context(model: Served, files: Sequence[tuple[str, str]], most: int) -> list[int]:
    """Return other files in the format that the model has tokens for (2409.12186), or with marks of text; of more than
    `most` tokens, the last ones."""
    tokenize, (*_, repository, mark) = model.vocabulary.tokenize, model.vocabulary.fill_tokens
    made = [] if mark is None else [mark, *tokenize(FILE)]
    for name, text in reversed(files):
        if len(made) >= most:
            break
        head = tokenize(SNIPPET) if mark is None else [mark, *tokenize(f"{name}\n")]
        made = [*head, *tokenize(text[-LONGEST_TOKEN * most :]), *made]
    else:
        made = made if repository is None else [repository, *tokenize(PROJECT), *made]
    return made[len(made) - min(most, len(made)) :]
