"""The prompts of /infill, which editors send to llama.cpp's server: a gap to fill, and the texts of other files."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.requests.bad_input import BadInputError, JsonObject, wrong
from edgespec.requests.fields import Fields
from edgespec.requests.known_fields import INFILL
from edgespec.runtime.prompts import LONGEST_TOKEN
from edgespec.serve.prompts import around_gap
from edgespec.serve.served import Served
from edgespec.settings import LARGEST

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
    prefix, suffix, prompt = (fields.text(name) for name in ("input_prefix", "input_suffix", "prompt"))
    files = _files(fields.take("input_extra", []))
    most = fields.integer("max_tokens", model.defaults.max_tokens, -1, LARGEST)
    tokenize = model.vocabulary.tokenize
    begun = tokenize(prompt, parse_special=True)
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
