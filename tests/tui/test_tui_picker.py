"""Choosing a model and its draft on the screen: by keys, by mouse, while files are still being read."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static
from tiny_gguf import model_metadata, model_tensors, write_file, write_model
from tiny_head import write_head
from tiny_mtp import write_mtp
from tui_harness import Styled, wait_until

from edgespec.chat.downloads import Downloads
from edgespec.files.paths import config_dir
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model
from edgespec.models.listing import rows_to_download
from edgespec.models.names.catalog import USER_FILE
from edgespec.models.names.local import LocalModel, local_model
from edgespec.models.pair.suggest import Suggestion, assessed, suggestions
from edgespec.models.pair.vocabulary import Vocabulary
from edgespec.models.recommend import Machine
from edgespec.tui.picker import Choices, ModelPicker
from edgespec.tui.picker_rows import Elsewhere, Here, Picked

Models = Callable[[], Iterator[LocalModel]]
Script = Callable[["Picking", Pilot[None]], Awaitable[None]]
SIZES = [(84, 22), (40, 20)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A target and what might draft for it: smaller, as large, sharing some tokens, sharing none, not able to."""
    folder = tmp_path_factory.mktemp("models")
    found = {
        "target": write_model(folder / "target.gguf", "llama", width=128, n_layers=4),
        "small": write_model(folder / "small.gguf", "llama", width=32, n_layers=1),
        "twin": write_model(folder / "twin.gguf", "llama", width=128, n_layers=4, seed=1),
        "partly": with_other_tokens(folder / "partly.gguf", 60),
        "stranger": with_other_tokens(folder / "stranger.gguf", 290),
        "mamba": write_model(folder / "mamba.gguf", "mamba"),
    }
    broken = folder / "broken.gguf"
    broken.write_text("<html>not found</html>")
    return {name: str(path) for name, path in found.items()} | {"broken": str(broken)}


def with_other_tokens(path: Path, n: int) -> Path:
    """A small model whose first `n` tokens no other model has."""
    metadata = model_metadata("llama", width=32)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    metadata["tokenizer.ggml.tokens"] = [f"\u0378{id}" if id < n else text for id, text in enumerate(tokens)]
    return write_file(path, metadata, model_tensors("llama", metadata))


def reading(*specs: str) -> Models:
    return lambda: (local_model(spec) for spec in specs)


class Picking(Styled):
    """An app that shows nothing but a picker, and what was picked in the end."""

    def __init__(self, picker: ModelPicker) -> None:
        super().__init__()
        self.picker = picker
        self.picked: list[Picked | None] = []

    def on_mount(self) -> None:
        self.push_screen(self.picker, self.picked.append)

    def lines(self, which: str) -> list[str]:
        """The options of a list, each in one line."""
        options = (option for option in self.choices(which).options if not (option.id or "").startswith("heading:"))
        return [" ".join(str(option.prompt).split()) for option in options]

    def choices(self, which: str) -> Choices:
        return self.picker.query_one(f"#picker-{which.replace('drafts', 'options')}", Choices)

    def highlighted(self, which: str) -> str:
        option = self.choices(which).highlighted_option
        return str(option.prompt).split("\n")[0].split("  ")[0] if option else ""

    @property
    def said(self) -> str:
        return str(self.picker.query_one("#picker-said", Static).content)

    @property
    def heading(self) -> str:
        return str(self.picker.query_one("#picker-title", Static).content)

    @property
    def is_settled(self) -> bool:
        """Everything was read, and every draft of the target assessed."""
        placeholder = self.picker.query_one("#picker-filter", Input).placeholder
        drafts = self.lines("drafts")
        return "..." not in placeholder and bool(drafts) and not any(line.endswith("...") for line in drafts)


def show(
    script: Script,
    models: Models,
    *,
    model: str = "demo",
    draft: str | None = None,
    size: tuple[int, int] = (84, 22),
    elsewhere: Elsewhere | None = None,
) -> list[Picked | None]:
    """Run a script on a picker, and return what was picked."""
    nowhere = Elsewhere(Downloads(), source=list, hub=lambda words: [])
    app = Picking(ModelPicker(model, draft, models, elsewhere or nowhere))

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await script(app, pilot)

    asyncio.run(run())
    return app.picked


until = wait_until


def pressing(*keys: str) -> Script:
    """Press these keys, the last one after everything was read and checked."""

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        await pilot.press(*keys[:-1])
        await until(pilot, lambda: app.is_settled)
        await pilot.press(keys[-1])

    return script


# --- choosing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_one_enter_chooses_what_is_highlighted(size: tuple[int, int]) -> None:
    assert show(pressing("enter"), reading("demo", "demo:draft"), size=size) == [Picked("demo", None)]


def test_escape_leaves_without_a_choice() -> None:
    for keys in (["tab", "escape"], [*"ll", "escape", "escape"]):
        assert show(pressing(*keys), reading("demo", "demo:draft")) == [None]


def test_a_draft_is_chosen_for_a_model(files: dict[str, str]) -> None:
    models = reading("demo", "demo:draft", files["target"], files["small"])

    def choosing(*keys: str) -> Script:
        async def script(app: Picking, pilot: Pilot[None]) -> None:
            await until(pilot, lambda: app.is_settled)
            await pilot.press("down", "down")
            await until(pilot, lambda: "small" in app.highlighted("drafts"))  # once it was assessed for this target
            await pilot.press(*keys)

        return script

    assert show(choosing("enter"), models) == [Picked(files["target"], files["small"])]
    assert show(choosing("right", "down", "enter"), models) == [Picked(files["target"], "none")]


def test_a_model_may_go_without_its_own_draft(files: dict[str, str]) -> None:
    models = reading("demo", "demo:draft", files["stranger"])
    assert show(pressing("right", "down", "enter"), models) == [Picked("demo", "none")]


def test_the_draft_in_use_is_highlighted(files: dict[str, str]) -> None:
    models = reading("demo", "demo:draft", files["target"], files["small"], files["partly"])
    for model, draft in (
        ("demo", "none"),
        ("demo", None),
        (files["target"], files["partly"]),
        (files["target"], "none"),
    ):
        here = Here(model, draft)
        for each in models():
            here.add(each)
        about = here.about(os.path.realpath(here.in_use.path) if here.in_use else "")
        (preferred,) = [offer for offer in about.offers if offer.key == about.preferred]
        assert preferred.picked == Picked(model, draft)
        assert "in use" in preferred.lines.plain


@pytest.mark.parametrize("size", SIZES)
def test_the_mouse_is_enough(files: dict[str, str], size: tuple[int, int]) -> None:
    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        await pilot.click("#picker-models", offset=(4, 2))
        assert app.highlighted("models") == "target"
        await until(pilot, lambda: app.is_settled)
        await pilot.click("#picker-options", offset=(4, 1))

    models = reading(files["small"], files["target"])
    assert show(script, models, model=files["small"], size=size) == [Picked(files["target"], files["small"])]


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_drafts_stand_from_the_best_to_the_worst_each_with_its_verdict(files: dict[str, str]) -> None:
    seen: list[str] = []

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        seen.extend(app.lines("drafts"))

    order = ["mamba", "stranger", "partly", "twin", "small", "target", "broken"]
    found = [local_model(files[name]) for name in order[:-1]]
    broken = LocalModel(files["broken"], Path(files["broken"]), "broken", problem="it is a web page")
    show(script, lambda: iter([broken, *found]), model=files["target"])
    small, partly, none = seen
    assert small.startswith("small works: ")
    assert " times smaller than the target · " in small
    assert partly.startswith("partly ")
    assert "vocabulary overlap 80 %, " in partly
    assert none.startswith("no draft model")


def test_the_order_and_the_reasons_are_those_of_the_suggestions(files: dict[str, str]) -> None:
    names = ["mamba", "stranger", "partly", "twin", "small"]
    found = suggestions(check_model(files["target"]), reading(*(files[name] for name in names))())
    expected = [each for each in found if each.verdict != "no"]

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        shown = [line for line in app.lines("drafts") if not line.startswith("no draft model")]
        assert [line.split()[0] for line in shown] == [Path(each.spec).stem for each in expected]
        for line, each in zip(shown, expected, strict=True):
            assert f"{each.why} · " in line

    show(script, reading(files["target"], *(files[name] for name in names)), model=files["target"])


def test_where_nothing_fits_it_is_said_what_would(files: dict[str, str], tmp_path: Path) -> None:
    target = tmp_path / "qwen2.5-7b-instruct-q4_k_m.gguf"
    target.write_bytes(Path(files["small"]).read_bytes())

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled and len(app.lines("drafts")) == 3)
        assert app.heading == "No compatible draft model is installed"
        _, *absent = app.lines("drafts")
        assert absent == [f"{name} not here; Enter downloads it" for name in ("qwen2.5-0.5b", "qwen2.5-1.5b")]
        await pilot.press("right")
        assert app.said == "no model here can draft for it; 'edgespec pull qwen2.5-0.5b' downloads one that can"
        await pilot.press("down")
        assert app.said == "Qwen 2.5 0.5B Instruct; not here: Enter downloads it, and then loads both"
        await pilot.press("enter")

    picked = show(script, reading(str(target), files["twin"]), model=str(target))
    assert picked == [Picked(str(target), "qwen2.5-0.5b")]


def test_where_the_catalogue_knows_nothing_either_that_is_said(files: dict[str, str]) -> None:
    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        assert app.heading == "No other model is here to draft for small"
        await pilot.press("right")
        await until(pilot, lambda: "the catalogue has none" in app.said)

    show(script, reading(files["small"]), model=files["small"])


def test_a_catalogue_with_errors_is_named_and_hinders_nothing(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    config_dir().mkdir(parents=True)
    (config_dir() / USER_FILE).write_text("[", encoding="utf-8")

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        await until(pilot, lambda: "cannot be read as TOML" in app.said)
        await pilot.press("enter", "enter")

    models = reading(files["target"], files["small"])
    assert show(script, models, model=files["target"], draft=files["small"]) == [
        Picked(files["target"], files["small"])
    ]


def test_an_incompatible_draft_is_listed_only_while_it_is_in_use(files: dict[str, str]) -> None:
    models = reading(files["target"], files["small"], files["twin"])
    kept = show(pressing("enter"), models, model=files["target"], draft=files["twin"])
    assert kept == [Picked(files["target"], files["twin"])]

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        assert [line.split()[0] for line in app.lines("drafts")] == ["small", "no"]

    show(script, models, model=files["target"])


def test_a_verdict_is_found_once(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[tuple[Path, Path]] = []

    def counting(target: Header, vocabulary: Vocabulary, draft: LocalModel) -> Suggestion:
        pairs.append((target.path, draft.path))
        return assessed(target, vocabulary, draft)

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        for key in ("down", "down", "up", "up", "down"):
            await until(pilot, lambda: app.is_settled)
            await pilot.press(key)
        await until(pilot, lambda: app.is_settled)

    monkeypatch.setattr("edgespec.tui.picker.assessed", counting)
    show(script, reading(files["target"], files["small"], files["twin"]), model=files["target"])
    assert len(set(pairs)) == 6
    assert len(pairs) == 6


# --- while files are read ---------------------------------------------------------------------------------------------


def slowly(first: Sequence[str], go_on: threading.Event, rest: Sequence[str] = ()) -> Models:
    """Models of which some take until `go_on` to be read."""

    def models() -> Iterator[LocalModel]:
        yield from reading(*first)()
        go_on.wait(30)
        yield from reading(*rest)()

    return models


def test_a_choice_can_be_made_before_everything_is_read() -> None:
    go_on = threading.Event()

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(app.lines("models")) == 2)
        assert app.picker.query_one("#picker-filter", Input).placeholder == "Filter 2 models ..., or find others"
        await until(pilot, lambda: "works" in " ".join(app.lines("drafts")))
        await pilot.press("enter", "enter")
        await until(pilot, lambda: bool(app.picked))
        go_on.set()

    assert show(script, slowly(["demo", "demo:draft"], go_on)) == [Picked("demo", None)]


def test_while_no_model_is_read_yet_the_list_says_that_it_is_looking() -> None:
    go_on = threading.Event()

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        field = app.picker.query_one("#picker-filter", Input)
        await until(pilot, lambda: field.placeholder == "Looking for models ...")
        go_on.set()
        await until(pilot, lambda: field.placeholder == "Filter 1 model, or find others")

    show(script, slowly([], go_on, ["demo"]), model="/nowhere/x.gguf")


def test_what_is_highlighted_stays_so_while_others_come(files: dict[str, str]) -> None:
    go_on = threading.Event()

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(app.lines("drafts")) == 2 and not app.lines("drafts")[0].endswith("..."))
        await pilot.press("right", "home")
        chosen = app.highlighted("drafts")
        assert chosen == "partly"
        go_on.set()
        await until(pilot, lambda: app.is_settled)
        listed = [line.split()[0] for line in app.lines("drafts")]
        assert listed == ["small", "partly", "no"]
        assert app.highlighted("drafts") == chosen
        await pilot.press("enter")

    models = slowly([files["partly"], files["twin"]], go_on, [files["stranger"], files["small"]])
    assert show(script, models, model=files["target"]) == [Picked(files["target"], files["partly"])]


def test_a_key_that_was_pressed_before_a_redraw_counts(files: dict[str, str]) -> None:
    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        app.choices("models").action_cursor_down()
        app.picker._redraw()
        assert app.highlighted("models") == "small"
        app.choices("options").action_last()
        app.picker._redraw()
        assert app.highlighted("drafts") == "no draft model"
        await pilot.press("right", "enter")

    models = reading(files["target"], files["small"])
    assert show(script, models, model=files["target"]) == [Picked(files["small"], "none")]


def test_a_file_is_listed_once_and_the_model_in_use_first(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(files["target"]).parent)
    lines: list[str] = []

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        lines.extend(app.lines("models"))
        await pilot.press("enter", "enter")

    picked = show(script, reading("demo", files["small"], files["target"]), model="./target.gguf", draft="none")
    assert [line.split()[0] for line in lines] == ["target", "demo", "small"]
    assert lines[0].startswith("target in use")
    assert picked == [Picked("./target.gguf", "none")]


# --- finding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_best", [False, True])
def test_models_for_this_machine_are_before_the_rest_of_the_catalogue(
    has_best: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.tui.picker_rows.this_machine", lambda in_use_bytes: Machine(8 * 10**9, 4, 30e9))
    rows = [row for row in rows_to_download() if not (has_best and row.name == "qwen3-4b-2507")]
    elsewhere = Elsewhere(Downloads(), source=lambda: rows, hub=lambda words: [])

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: elsewhere.machine is not None and len(app.lines("models")) > len(rows))
        await pilot.pause(0.1)
        headings = [option.id for option in app.choices("models").options if (option.id or "").startswith("heading:")]
        first = app.lines("models")[2:4]  # after the bundled pair
        if has_best:  # others are not better
            assert headings == ["heading:catalogue", "heading:hub"]
            assert first[0].startswith("gemma4-e2b ")
            return
        assert headings == ["heading:best", "heading:catalogue", "heading:hub"]
        assert first[0].endswith("qwen3-4b-2507 \u2713 ~2.7 GB · about 8 tok/s · Qwen 3 4B Instruct 2507")
        assert first[1].startswith("qwen2.5-1.5b ")
        assert len(app.lines("models")) == len(rows) + 2
        await pilot.press("q", "w", "e", "n", "3", "-", "4", "b", "-")
        await until(pilot, lambda: app.highlighted("models") == "qwen3-4b-2507")
        assert "Apache-2.0; ~2.7 GB to download" in app.said and "about 8 tokens per second" in app.said

    show(script, reading("demo", "demo:draft"), size=(140, 40), elsewhere=elsewhere)


def test_the_filter_narrows_the_models(files: dict[str, str]) -> None:
    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        await pilot.press(*"TWIN")
        assert app.lines("models")[0].startswith("twin ")
        assert len(app.lines("models")) == 1
        await pilot.press("space", *"q8")
        assert app.lines("models") == []
        assert app.lines("drafts") == []
        await pilot.press("enter", "down", "enter")  # nothing to choose
        await pilot.press("tab", "slash", *"twin")  # in place of what was there
        assert app.highlighted("models") == "twin"
        await until(pilot, lambda: app.is_settled)
        await pilot.press("enter")

    models = reading("demo", "demo:draft", files["twin"], files["small"])
    assert show(script, models) == [Picked(files["twin"], files["small"])]


def test_escape_takes_a_filter_away_first(files: dict[str, str]) -> None:
    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        for keys in ([*"twin"], [*"zzz"], [*"zzz", "enter"]):
            await pilot.press(*keys)
            assert len(app.lines("models")) < 2
            await pilot.press("escape")
            assert len(app.lines("models")) == 3
            assert app.focused and app.focused.id == "picker-filter"
        await pilot.press(*"twin", "right", "escape")  # from a list that has something in it

    assert show(script, reading("demo", "demo:draft", files["twin"])) == [None]


def test_a_path_that_is_typed_is_chosen(files: dict[str, str]) -> None:
    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        await pilot.press(*"./x.gguf", "enter")

    assert show(script, reading("demo"), size=(40, 20)) == [Picked("./x.gguf", None)]


def test_a_draft_head_is_offered_as_a_draft_only(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target.gguf", "llama", n_layers=4)
    head = write_head(tmp_path / "head.gguf")

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        assert [line.split()[0] for line in app.lines("models")] == ["target"]
        assert app.lines("drafts")[0].startswith("head works:")
        await pilot.press("right", "home", "enter")

    picked = show(script, reading(str(target), str(head)), model=str(target))
    assert picked == [Picked(str(target), str(head))]


def test_a_model_is_listed_with_its_draft_head_and_a_published_one_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))
    config_dir().mkdir(parents=True)
    entry = '[tiny]\nrepository = "owner/tiny-GGUF"\n'
    head = 'heads = [{ kind = "eagle3", repository = "owner/head", tokens = 2.5 }]'
    (config_dir() / USER_FILE).write_text(entry + head)
    target = write_model(tmp_path / "tiny-Q8_0.gguf", "llama", n_layers=4)
    block = write_mtp(tmp_path / "block.gguf")

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: any("not here" in line for line in app.lines("models")))
        models = [line.rpartition(" · ")[2] for line in app.lines("models")]
        assert models[1:] == ["eagle3 not here", "mtp in its file"]
        await pilot.press("down")
        await until(pilot, lambda: app.is_settled and "owner/head" in app.lines("drafts")[-1])
        assert app.lines("drafts")[-1] == "owner/head EAGLE-3 head, not here; Enter downloads it"
        await pilot.press("right", "end")
        await until(pilot, lambda: "published: 2.5 tokens a step" in app.said)
        await pilot.press("enter")

    assert show(script, reading(str(target), str(block))) == [Picked(str(target), "owner/head")]


def test_a_file_that_cannot_be_loaded_is_shown_last_and_refused(files: dict[str, str]) -> None:
    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        assert app.lines("models")[-1] == "broken cannot be used: it is a web page"
        assert "broken" not in " ".join(app.lines("drafts"))
        await pilot.press("tab", "end", "enter")
        assert app.lines("drafts") == []
        assert app.said == "it is a web page"
        await pilot.press("escape")

    broken = LocalModel(files["broken"], Path(files["broken"]), "broken", problem="it is a web page")
    assert show(script, lambda: iter([broken, local_model("demo"), local_model("demo:draft")])) == [None]


# --- the look of it ---------------------------------------------------------------------------------------------------


def test_a_model_of_the_hub_is_called_by_its_repository(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cached = []
    for owner, source in (("me", "target"), ("you", "small")):
        folder = tmp_path / f"models--{owner}--any-GGUF"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("0" * 40, encoding="ascii")
        cached.append(folder / "snapshots" / ("0" * 40) / "model-Q8_0.gguf")
        cached[-1].parent.mkdir(parents=True)
        cached[-1].write_bytes(Path(files[source]).read_bytes())
    target, draft = map(str, cached)

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        names = [line.split()[0] for line in app.lines("models")]
        assert names == ["me/any-GGUF:Q8_0", "demo", "you/any-GGUF:Q8_0"]
        assert app.heading == "1 of 2 here can draft for me/any-GGUF:Q8_0"
        assert app.lines("drafts")[0].startswith("you/any-GGUF:Q8_0 works: ")
        await pilot.press(*"any-gguf:q8_0 you")
        assert [line.split()[0] for line in app.lines("models")] == ["you/any-GGUF:Q8_0"]

    show(script, reading(target, "demo", draft), model=target)


@pytest.mark.parametrize("size", SIZES)
def test_lists_stand_beside_each_other_or_one_above_the_other(size: tuple[int, int]) -> None:
    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        models, drafts = app.choices("models").region, app.choices("options").region
        if size[0] >= 80:
            assert (models.y, models.height) == (drafts.y, drafts.height)
            assert models.right <= drafts.x
        else:
            assert models.bottom <= drafts.y
            assert models.x == drafts.x
        screen = app.picker.region
        for widget in app.picker.query("Choices, Input, #picker-details, Footer"):
            assert screen.contains_region(widget.region)
            assert widget.region.height >= (4 if isinstance(widget, Choices) else 1)

    show(script, reading("demo", "demo:draft"), size=size)


def test_every_place_is_reached_with_tab() -> None:
    async def script(app: Picking, pilot: Pilot[None]) -> None:
        places = []
        for _ in range(4):
            places.append(app.focused.id if app.focused else None)
            await pilot.press("tab")
        assert places == ["picker-filter", "picker-models", "picker-options", "picker-details"]

    show(script, reading("demo"))


def test_what_a_file_is_called_is_shown_as_it_is(tmp_path: Path, files: dict[str, str]) -> None:
    strange = tmp_path / "[red]x[bold].gguf"
    strange.write_bytes(Path(files["small"]).read_bytes())

    async def script(app: Picking, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.is_settled)
        assert app.lines("models")[0].startswith("[red]x[bold] in use")

    show(script, reading(str(strange), "demo"), model=str(strange))
