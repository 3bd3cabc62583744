"""Prompts with images: the same texts with and without drafts, other sequences and cached prompts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pixels
from tiny_gguf import write_model
from tiny_lora import write_adapter
from tiny_projector import SEEING, picture, write_seeing

import edgespec
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError, ModelFileError, ModelNotFoundError, UsageError
from edgespec.files.images import pixels_of
from edgespec.llama import kernels, projector
from edgespec.llama.trial import try_projector
from edgespec.runtime import vision
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Image, Message, Request

SETTINGS: dict[str, Any] = {"store": False, "ctx_size": 1024, "threads": 1}
CAT, DOG = picture(1), picture(2, 64, 128, "JPEG")
LONG = "def walk(top):\n    for name in sorted(names):\n        yield join(top, name)\n" * 6  # is read in wide passes
FIRST = Message("user", f"{LONG}what is this?", images=(Image(CAT, 0),))
LAST = Message("user", "look at this: ", images=(Image(CAT, 14),))
TWO = Message("user", f"compare {LONG} with this", images=(Image(CAT, 8), Image(DOG, 8 + len(LONG))))
PLAIN = Message("user", f"{LONG}print(x)")


@pytest.fixture(scope="module", params=[*SEEING])
def seeing(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_seeing(tmp_path_factory.mktemp(request.param), request.param)
    drafts = {"llama": "llama", "qwen2vl": "qwen2", "gemma3": "gemma3"}
    write_model(path.with_name("draft.gguf"), drafts[request.param], noise=0.03)
    return path


def load(path: Path, **settings: Any) -> Runtime:
    return edgespec.load(str(path), **{"spec_type": "none", **SETTINGS, **settings})


def asked(*messages: Message, temperature: float = 0.0, n: int = 12, **how: Any) -> Request:
    return Request(messages=messages, max_tokens=n, sampling=SamplingSettings(temperature), **how)


def answers(llm: Runtime, *requests: Request) -> list[tuple[int, ...]]:
    """The ids of the answers, which are generated together if there are slots for them."""
    found: dict[int, list[int]] = {index: [] for index in range(len(requests))}
    for index, event in llm.stream(requests):
        if isinstance(event, EdgespecError):
            raise event
        found[index] += [event.id] if event.id >= 0 else []
    return [tuple(ids) for ids in found.values()]


def talk(llm: Runtime, temperature: float) -> Iterator[tuple[int, ...]]:
    """Answer two turns of a chat with images, then an edited one, and the first one again."""
    [first] = answers(llm, asked(FIRST, temperature=temperature))
    yield first
    said = Message("assistant", "", first)
    for message in (TWO, LAST, Message("user", "and now?"), TWO):
        yield from answers(llm, asked(FIRST, said, message, temperature=temperature))
    yield from answers(llm, asked(FIRST, temperature=temperature))


DRAFTING: list[dict[str, Any]] = [
    {"spec_type": "suffix,lookahead,recycling", "pace": "fixed:4"},
    {"spec_type": "draft", "pace": "fixed:3"},
    {"spec_type": "draft,suffix", "pace": "fixed:6"},
]


@pytest.mark.skipif(not kernels.have_exact_kernels(), reason="this build of llama.cpp was made elsewhere")
def test_drafts_change_no_text(seeing: Path) -> None:
    def texts(**settings: Any) -> list[Any]:
        with load(seeing, **settings) as llm:
            return [[*talk(llm, temperature)] for temperature in (0.0, 0.9)]

    plain = texts()
    for settings in DRAFTING:
        draft = {"draft_model": str(seeing.with_name("draft.gguf"))} if "draft" in settings["spec_type"] else {}
        assert texts(**settings, **draft) == plain


@pytest.mark.skipif(not kernels.have_exact_kernels(), reason="this build of llama.cpp was made elsewhere")
def test_other_sequences_and_cached_prompts_change_no_text(seeing: Path) -> None:
    requests = [
        asked(message, temperature=0.9, seed=number) for number, message in enumerate((FIRST, PLAIN, TWO, LAST, FIRST))
    ]
    with load(seeing) as llm:
        alone = []
        for request in requests:
            llm.forget()
            alone += answers(llm, request)
        cached = [text for request in requests for text in answers(llm, request)]
        assert llm.stats.cached_tokens > 0
    with load(seeing, sequences=3, spec_type="suffix,recycling", pace="fixed:2") as llm:
        together = answers(llm, *requests)
    assert (cached, together) == (alone, alone)


def test_the_same_image_is_read_once(seeing: Path) -> None:
    with load(seeing) as llm:
        answers(llm, asked(LAST, n=2))
        again = Message("user", "look at this: ()", images=LAST.images)
        answers(llm, asked(again, n=2))
        tokens = llm.tokenize(asked(LAST))
        n_before, n_image = next(at for at, token in enumerate(tokens) if token < 0), sum(token < 0 for token in tokens)
        assert llm.stats.cached_tokens >= n_before + n_image > n_before
        other = Message("user", "look at this: ", images=(Image(DOG, 14),))
        answers(llm, asked(other, n=2))
        assert 0 < llm.stats.cached_tokens <= n_before


def test_an_answer_depends_on_the_image(seeing: Path) -> None:
    with load(seeing) as llm:
        requests = [asked(Message("user", "this:", images=(Image(data, 5),))) for data in (CAT, DOG)]
        assert len({*answers(llm, *requests)}) == 2


def test_penalties_pass_over_images(seeing: Path) -> None:
    sampling = SamplingSettings(0, repeat_penalty=1.3, repeat_last_n=-1)
    with load(seeing) as llm:
        assert answers(llm, Request(messages=(FIRST,), max_tokens=4, sampling=sampling))


def test_a_cancelled_image_leaves_a_cache_that_can_be_used(seeing: Path) -> None:
    with load(seeing) as llm:
        [expected] = answers(llm, asked(LAST))
        llm.forget()
        stream = llm.submit(asked(TWO))
        stream.close()
        assert answers(llm, asked(LAST)) == [expected]


def test_a_model_without_a_projector_says_that_it_cannot_see(seeing: Path, tmp_path: Path) -> None:
    with load(seeing, mmproj="none") as llm:
        assert llm.info.projector is None
        with pytest.raises(UsageError, match=r"tiny.gguf cannot see images: it has no projector"):
            answers(llm, asked(FIRST))
        assert answers(llm, asked(PLAIN, n=1))
    with pytest.raises(ModelNotFoundError, match="projector file"):
        load(seeing, mmproj=str(tmp_path / "missing.gguf"))
    with pytest.raises(ModelFileError, match="is not a projector"):
        load(seeing, mmproj=str(seeing))


def test_a_damaged_projector_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tried = write_seeing(tmp_path, "llama"), list[Path]()
    projector_file = path.with_name("mmproj-F32.gguf")
    projector_file.write_bytes(projector_file.read_bytes()[:-1000])

    def counted(file: Path, model: Path) -> None:
        tried.append(file)
        try_projector(file, model)

    monkeypatch.setattr(vision, "try_projector", counted)
    with load(path) as llm:
        for _ in range(2):
            with pytest.raises(ModelFileError):
                answers(llm, asked(FIRST))
        assert answers(llm, asked(PLAIN, n=1))
    assert tried == [projector_file]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GIF89a nonsense", "cannot be|not an image"),
        (CAT[:200], "cannot be decoded"),
        (b"", "not an image"),
    ],
)
def test_a_damaged_image_is_an_error_and_nothing_else(seeing: Path, data: bytes, why: str) -> None:
    with load(seeing) as llm:
        with pytest.raises(UsageError, match=why):
            answers(llm, asked(Message("user", "this: ", images=(Image(data, 6, "a.png"),))))
        assert answers(llm, asked(LAST, n=1))


def test_a_template_that_reads_only_parts_gets_them(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
        "{% endif %}{% endfor %}{% endfor %}"
    )
    path = write_seeing(tmp_path, "llama", chat_template=template)
    with load(path) as llm:
        tokens = llm.tokenize(asked(Message("user", "see this", images=(Image(CAT, 4),))))
        text = [token for token in tokens if token >= 0]
        assert b"".join(llm.prompts.token_bytes(text)) == b"<user>see this"
        assert len(tokens) > len(text)


def test_a_template_that_leaves_out_messages_is_an_error(tmp_path: Path) -> None:
    path = write_seeing(tmp_path, "llama", chat_template="hello")
    with load(path) as llm, pytest.raises(UsageError, match=r"the chat template of tiny.gguf leaves out images"):
        llm.tokenize(asked(FIRST))


def test_an_image_is_read_with_the_adapters_of_its_answer(tmp_path: Path) -> None:
    path = write_seeing(tmp_path, "llama")
    adapter = write_adapter(tmp_path / "one.gguf", path)
    first = Message("user", "what is this?", images=(Image(CAT, 0),))
    with load(path, lora=(str(adapter),)) as llm:
        expected = answers(llm, asked(first))
    with load(path, lora=(str(adapter),)) as llm:
        assert answers(llm, asked(first, lora=((0, 0.0),))) != expected
        assert answers(llm, asked(first)) == expected


def test_photos_are_decoded_once_also_if_they_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[bytes]()

    def counted(data: bytes, name: str) -> Any:
        decoded.append(data)
        return pixels_of(data, name)

    monkeypatch.setattr(projector, "pixels_of", counted)
    photos = [picture(seed, 2400, 1600, "JPEG") for seed in range(8)]
    message = Message("user", "these:", images=tuple(Image(data) for data in photos))
    with load(write_seeing(tmp_path, "llama")) as llm:
        llm.count([message])
        llm.count([message])
    assert decoded == photos


def test_many_huge_images_are_refused_before_they_are_decoded(seeing: Path) -> None:
    made = io.BytesIO()
    Pixels.new("1", (8000, 8000)).save(made, "PNG")
    message = Message("user", "these:", images=(Image(made.getvalue()),) * 9)
    with load(seeing) as llm, pytest.raises(UsageError, match=r"images of the prompt are too large: .*512,000,000"):
        llm.count([message])
