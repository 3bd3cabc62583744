"""`edgespec ls`, `show` and `rm`: the models of this machine are listed, described and deleted."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from cli_program import Finished, edgespec_here
from filelock import FileLock
from huggingface_hub import scan_cache_dir
from terminal import at_terminal, read_rest
from tiny_gguf import CHATML, Value, write_embedding_model, write_file, write_model, write_split
from tiny_head import write_head, write_hydra, write_peagle
from tiny_mtp import write_mtp

from edgespec.errors import EdgespecError, ModelNotFoundError, UsageError
from edgespec.llama.model import LlamaModel
from edgespec.models.hub.removal import plan_removal, remove
from edgespec.models.names.model_names import known_models, known_names, name_of
from edgespec.models.names.source import BUNDLED
from edgespec.models.names.spec import resolve
from edgespec.text.figures import count_of, size_of

LINKS = pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
POSIX = pytest.mark.skipif(os.name != "posix", reason="Windows refuses by itself to delete what is in use")
COMMITS = ("c" * 40, "d" * 40)
TRAINED: dict[str, Value | None] = {
    "general.base_model.0.name": "tiny",
    "edgespec.head.training_tokens": 156_000,
    "edgespec.head.training_minutes": 28.0,
    "edgespec.head.acceptance": [0.5, 0.25],
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with an empty hub cache, as the working folder."""
    for name in ("HOME", "USERPROFILE", "EDGESPEC_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("LLAMA_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "hub").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Repository:
    """A folder of the hub cache, as huggingface_hub creates it: files are links to blobs."""

    def __init__(self, home: Path, name: str) -> None:
        self.folder = home / "hub" / f"models--{name.replace('/', '--')}"
        self.blobs = self.folder / "blobs"
        self.blobs.mkdir(parents=True)

    def keep(self, name: str, file: Path, commit: str = COMMITS[0], branch: str = "main") -> Path:
        """Move the file into the repository, or link a blob of it."""
        blob = file if file.parent == self.blobs else file.rename(self.blobs / f"{len(list(self.blobs.iterdir())):064}")
        link = self.folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if os.name == "nt":
            blob.rename(link)  # as huggingface_hub does on Windows
        else:
            link.symlink_to(os.path.relpath(blob, link.parent))
        reference = self.folder / "refs" / branch
        reference.parent.mkdir(exist_ok=True)
        reference.write_text(commit)
        return link

    def begin(self, n_bytes: int = 1000) -> Path:
        """Add an incomplete download of this size."""
        path = self.blobs / f"{'e' * 64}.incomplete"
        path.write_bytes(bytes(n_bytes))
        return path


@pytest.fixture
def kept(home: Path) -> Repository:
    """A repository with two quantisations of a model."""
    repository = Repository(home, "owner/tiny-GGUF")
    repository.keep("tiny-Q8_0.gguf", write_model(home / "a", "llama", type="Q8_0"))
    repository.keep("deep/tiny-F16.gguf", write_model(home / "b", "llama", type="F16", width=256, chat_template=CHATML))
    return repository


def edgespec(home: Path, *args: str, code: int = 0, **variables: str) -> Finished:
    done = edgespec_here(*args, home=home, stdin=b"", **variables)
    assert done.returncode == code, done.stderr
    return done


def text_of(home: Path, *args: str, columns: int = 200) -> str:
    return edgespec(home, *args, COLUMNS=str(columns)).stdout.decode()


def objects(home: Path, *args: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in edgespec(home, *args, "--json").stdout.decode().splitlines()]


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() or path.is_symlink())


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_file_has_the_shortest_name_that_means_it(home: Path, kept: Repository) -> None:
    link = kept.folder / "snapshots" / COMMITS[0] / "tiny-Q8_0.gguf"
    assert name_of(link) == "owner/tiny-GGUF:Q8_0"
    assert name_of(BUNDLED / "draft.gguf") == "demo:draft"
    assert name_of(home / "models" / "mine.gguf") == str(Path("~/models/mine.gguf"))
    same_quant = kept.keep("other-Q8_0.gguf", write_model(home / "c", "llama", seed=1))
    assert name_of(same_quant) == "hf:owner/tiny-GGUF/other-Q8_0.gguf"
    older = kept.keep("old-Q2_K.gguf", write_model(home / "d", "llama", seed=2), COMMITS[1], "v1")
    assert name_of(older) == f"owner/tiny-GGUF@{COMMITS[1]}:Q2_K"
    for path in (link, same_quant, older):
        assert resolve(name_of(path)).path.samefile(path)


def test_names_that_can_be_typed_are_known_without_looking_into_files(home: Path, kept: Repository) -> None:
    for path in files_in(kept.folder / "snapshots"):
        path.write_bytes(b"no model")
    names = list(known_names())
    assert names[:2] == ["demo", "demo:draft"]
    assert {"qwen2.5-7b", "owner/tiny-GGUF:Q8_0", "owner/tiny-GGUF:F16"} <= set(names)
    (home / "config").mkdir()
    (home / "config" / "models.toml").write_text("no = TOML =")
    assert "owner/tiny-GGUF:F16" in known_names()


def test_a_known_name_means_the_file_that_it_is_listed_with(home: Path, kept: Repository) -> None:
    kept.keep("other-Q8_0.gguf", write_model(home / "c", "llama", seed=1))
    kept.keep("eagle3-Q4_0.gguf", write_model(home / "d", "llama", seed=2))
    Repository(home, "Qwen/Qwen2.5-7B-Instruct-GGUF").keep("q-Q4_K_M.gguf", write_model(home / "e", "llama", seed=3))
    here = {name: path for name, path in known_models() if path is not None}
    assert {name for name in here if "owner/" in name} == {
        "hf:owner/tiny-GGUF/tiny-Q8_0.gguf", "hf:owner/tiny-GGUF/other-Q8_0.gguf",  # two of one quantisation
        "owner/tiny-GGUF:F16", "hf:owner/tiny-GGUF/eagle3-Q4_0.gguf",
    }  # fmt: skip
    assert {"demo", "qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M"} <= here.keys()
    for name, path in here.items():
        assert resolve(name).path.samefile(path)
    assert [name for name, path in known_models() if name == "qwen2.5-14b" and path is None]


def test_a_repository_without_an_owner_has_no_name_that_can_be_typed(home: Path) -> None:
    link = Repository(home, "gpt2").keep("gpt2-Q8_0.gguf", write_model(home / "a", "llama"))
    assert not [name for name in known_names() if "gpt2" in name]
    (home / "config").mkdir()
    (home / "config" / "models.toml").write_text("no = TOML =")
    [model] = objects(home, "ls", "gpt2")
    assert model["model"] == name_of(link) == str(Path("~") / link.relative_to(home))


# --- ls ---------------------------------------------------------------------------------------------------------------


def test_models_are_listed_as_a_table(home: Path, kept: Repository) -> None:
    kept.keep("a-long-name-" * 6 + ".gguf", write_model(home / "c", "llama", seed=1))
    lines = text_of(home, "ls", columns=80).splitlines()
    assert lines[0].split() == ["model", "parameters", "weights", "size", "context", "modified"]
    long_name = f"hf:owner/tiny-GGUF/{'a-long-name-' * 6}.gguf"  # whole, so that it can be copied
    assert {line.split()[0] for line in lines[2:7]} == {
        "demo", "demo:draft", "owner/tiny-GGUF:Q8_0", "owner/tiny-GGUF:F16", long_name,
    }  # fmt: skip
    [line] = [line for line in lines if line.startswith("owner/tiny-GGUF:Q8_0")]
    assert re.fullmatch(r"owner/tiny-GGUF:Q8_0 +112k +Q8_0 +\d+\.\d kB +2048 +today \d\d:\d\d", line)


def test_a_table_counts_wide_characters_twice(home: Path) -> None:
    write_model(home / "中文.gguf", "llama")
    lines = text_of(home, "ls").splitlines()
    assert lines[4].index("112k") + 4 + 2 == lines[0].index("parameters") + 10


def test_all_that_is_here_is_counted_together(home: Path, kept: Repository) -> None:
    n_bytes = sum(each["size_bytes"] for each in objects(home, "ls"))
    assert text_of(home, "ls").endswith(f"\n\n4 models, {n_bytes / 1e6:.1f} MB\n")
    kept.begin(2_000_000)
    (home / "page.gguf").write_text("x" * 300_000)
    said = text_of(home, "ls")
    assert said.endswith(f"\n4 models, {n_bytes / 1e6:.1f} MB; 2.3 MB in files that cannot be loaded\n")


def test_draft_heads_are_listed_apart_from_models_and_shown_with_their_model(home: Path) -> None:
    write_model(home / "deep.gguf", "llama", n_layers=8)
    write_head(home / "head.gguf", draft_tokens=[1, 2, 3], has_vocabulary=False)
    write_hydra(home / "misfit.gguf", n_vocab=5)
    (home / "eagle3-broken.gguf").write_bytes(b"<html>")
    table, _, rest = text_of(home, "ls").partition("draft heads, which draft for their model (-md):\n")
    assert "deep.gguf" in table and "head.gguf" not in table
    assert "head.gguf: eagle3, " in rest and rest.rstrip().endswith("in files that cannot be loaded")
    assert "3 models, " in rest and "; 2 draft heads; " in rest
    shown = text_of(home, "show", "deep.gguf")
    assert re.search(r"\ndrafts near it +head.gguf: fits, eagle3 head\n", shown)
    assert re.search(r"\n +misfit.gguf: hydra head, does not fit: .* 5 tokens", shown)
    assert re.search(r"\n +eagle3-broken.gguf: does not fit: it is a web page", shown)
    assert "smollm2" not in shown


def test_a_model_is_listed_and_shown_with_its_draft_head(home: Path) -> None:
    (home / "config").mkdir()
    (home / "config" / "models.toml").write_text(
        '[tiny]\nrepository = "owner/tiny-GGUF"\n'
        'heads = [{ kind = "eagle3", repository = "owner/head", tokens = 2.5, source = "https://page" },\n'
        '{ kind = "dflash", repository = "owner/block", speedup = 2 }]'
    )
    target = Repository(home, "owner/tiny-GGUF").keep(
        "tiny-Q4_K_M.gguf", write_model(home / "a.gguf", "llama", n_layers=4)
    )
    write_mtp(home / "block.gguf")
    write_model(home / "without.gguf", "llama", n_layers=2)

    def ends() -> dict[str, str]:
        lines = text_of(home, "ls").splitlines()
        return {
            line.split()[0]: line.partition(" today ")[0].split("2048")[-1].strip() for line in lines if "2048" in line
        }

    assert ends() == {"block.gguf": "mtp in its file", "owner/tiny-GGUF:Q4_K_M": "eagle3 not here", "without.gguf": ""}
    note = b"note: edgespec pull MODEL --head downloads a draft head that is not here\n"
    assert edgespec_here("ls", home=home).stderr == note
    shown = text_of(home, "show", "tiny")
    assert "\ndraft head       eagle3 not here: edgespec pull tiny --head\n" in shown
    published = "owner/head: EAGLE-3 head, published: 2.5 tokens a step"
    assert f"{published} (https://page) owner/block: DFlash head, published: 2 times the speed" in " ".join(
        shown.split()
    )
    assert "()" not in shown
    heads = {each["model"]: each["head"] for each in objects(home, "ls")}
    assert heads["owner/tiny-GGUF:Q4_K_M"] == {"kind": "eagle3", "place": "not here", "spec": "owner/head"}
    assert heads["block.gguf" if "block.gguf" in heads else "~/block.gguf"] == {
        "kind": "mtp", "place": "in its file", "spec": None
    }  # fmt: skip
    write_head(target.with_name("anything.gguf"))
    assert ends()["owner/tiny-GGUF:Q4_K_M"] == "eagle3 here"
    assert edgespec_here("ls", home=home).stderr == b""
    assert "\ndraft head       eagle3 here\n" in text_of(home, "show", "tiny")
    assert "tiny" in text_of(home, "ls", "tiny") and "eagle3 here" in text_of(
        home, "ls", "tiny"
    )  # the head is not listed


def test_a_narrow_terminal_leaves_out_what_matters_least(home: Path) -> None:
    name = f"{'long-' * 9}name.gguf"
    write_mtp(home / name)
    with at_terminal(home, ["ls"], streams=["stdout"], COLUMNS="80", LINES="24") as (program, master):
        seen = read_rest(master)
        assert program.wait(60) == 0
    lines = [line.rstrip() for line in seen.splitlines()]
    assert next(line for line in lines if "long-" in line).endswith("mtp in its file")
    assert "modified" not in seen and "context" not in lines[0]


def test_only_models_with_the_text_in_their_names_are_listed(home: Path, kept: Repository) -> None:
    assert [each["model"] for each in objects(home, "ls", "TINY-gguf:q8")] == ["owner/tiny-GGUF:Q8_0"]
    done = edgespec(home, "ls", "nothing like it")
    assert (done.stdout, b"no model on this machine has 'nothing like it'" in done.stderr) == (b"", True)


def test_as_json_a_model_has_all_its_files(home: Path) -> None:
    repository = Repository(home, "o/split")
    links = [repository.keep(part.name.replace("tiny", "m-Q2_K"), part) for part in write_split(home)]
    [model] = objects(home, "ls", "o/split")
    assert (model["model"], model["files"]) == ("o/split:Q2_K", [str(link) for link in links])
    assert model["size_bytes"] == sum(link.stat().st_size for link in links)
    assert (model["parameters"], model["ctx_trained"], model["problem"]) == (112320, 2048, "")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", model["modified"])


@pytest.mark.parametrize(
    ("days", "said"), [(0, r"today \d\d:\d\d"), (1, "yesterday"), (3, "3 days ago"), (400, r"20\d\d-\d\d-\d\d")]
)
def test_the_age_of_a_model_is_shown(home: Path, days: int, said: str) -> None:
    path = write_model(home / "mine.gguf", "llama")
    os.utime(path, (time.time() - days * 86400,) * 2)
    assert re.search(rf"mine\.gguf .* 2048 +{said}\n", text_of(home, "ls"))


def test_files_that_cannot_be_loaded_stand_at_the_end_with_the_reason(home: Path) -> None:
    write_file(home / "a.gguf", {"general.architecture": "t5encoder"}, {})
    (home / "b.gguf").write_text("<html>not found</html>")
    write_model(home / "c.gguf", "llama")
    table, _, problems = text_of(home, "ls").partition("\n\ncannot be loaded:\n")
    assert "c.gguf" in table and "a.gguf" not in table
    assert re.match(r"~.a\.gguf\n    \d.* B, it is the enc.*\n~.b\.gguf\n    22 B, it is a web page.*\n\n", problems)


def test_embedding_models_are_listed_apart(home: Path) -> None:
    write_embedding_model(home / "a.gguf")
    write_model(home / "c.gguf", "llama")
    table, _, rest = text_of(home, "ls").partition("\n\nfor vectors and scores of texts ('edgespec serve'):\n")
    assert "a.gguf" not in table
    assert re.match(r"a\.gguf: bert, [\d.]+ kB\n\n3 models, .* MB; 1 embedding model\n", rest)
    about = text_of(home, "show", "a.gguf")
    assert re.search(r"pooling +mean", about) and "KV cache" not in about


@LINKS
def test_links_that_lead_nowhere_are_problems(home: Path) -> None:
    (home / "models").mkdir()
    (home / "models" / "gone.gguf").symlink_to("/disk/gone.gguf")
    said = text_of(home, "ls").partition("cannot be loaded:\n")[2]
    assert said.startswith("~/models/gone.gguf\n    it is a broken link to /disk/gone.gguf\n")


def test_folders_of_the_user_that_are_not_there_are_reported(home: Path) -> None:
    (home / "there").mkdir()
    folders = os.pathsep.join(str(home / name) for name in ("there", "disk-LLMs"))
    said = edgespec(home, "ls", EDGESPEC_MODELS=folders).stderr.decode()
    assert said == f"note: {Path('~/disk-LLMs')}, set in EDGESPEC_MODELS, does not exist\n"


@POSIX
def test_a_name_that_would_break_the_list_stays_in_its_line(home: Path) -> None:
    write_model(home / "a\x1b[31m\nb.gguf", "llama")
    assert text_of(home, "ls").splitlines()[4].split()[0] == "a\ufffd[31m"


@LINKS
def test_several_unfinished_downloads_of_a_repository_are_reported_together(home: Path, kept: Repository) -> None:
    kept.begin(1_000_000)
    (kept.blobs / f"{'f' * 64}.incomplete").write_bytes(bytes(234_567))
    (kept.blobs / f"{'a' * 64}.incomplete").mkdir()  # a folder is not a download
    (kept.blobs / f"{'b' * 64}.incomplete").symlink_to("nowhere")
    said = text_of(home, "ls").partition("incomplete downloads:\n")[2]
    assert said.startswith("owner/tiny-GGUF\n    1.2 MB downloaded; to finish it, ")
    assert said.count("to finish it") == 1


@LINKS
def test_unfinished_downloads_are_reported_with_what_can_be_done(home: Path, kept: Repository) -> None:
    kept.begin(1_234_567)
    said = text_of(home, "ls").partition("incomplete downloads:\n")[2]
    assert said.startswith(
        "owner/tiny-GGUF\n    1.2 MB downloaded; to finish it, repeat the command that started it\n"
        f"    to delete it, delete the incomplete files in {kept.blobs}\n"
    )
    *_, begun = objects(home, "ls")
    assert (begun["model"], begun["size_bytes"], begun["problem"]) == (
        "owner/tiny-GGUF", 1_234_567, "incomplete download",
    )  # fmt: skip


# --- ls --catalog -----------------------------------------------------------------------------------------------------


def test_the_catalogue_is_listed_with_what_is_here(home: Path) -> None:
    repository = Repository(home, "Qwen/Qwen2.5-7B-Instruct-GGUF")
    repository.keep("m-q8_0.gguf", write_model(home / "a", "llama"))
    entries = {each["name"]: each for each in objects(home, "ls", "--catalog")}
    assert (entries["qwen2.5-7b"]["here"], entries["qwen2.5-14b"]["here"]) == (["Q8_0"], [])
    lines = text_of(home, "ls", "--catalog").splitlines()
    columns = ["model", "size", "fits", "here", "licence", "about", "weights", "drafts", "draft head"]
    assert re.split("  +", lines[0]) == columns
    assert entries["qwen3-8b"]["heads"][0]["kind"] == "eagle3" and "tokens" in entries["qwen3-8b"]["heads"][0]
    assert entries["qwen3-8b"]["head"] == {
        "kind": "eagle3", "place": "not here", "spec": entries["qwen3-8b"]["heads"][0]["repository"]
    }  # fmt: skip
    assert next(line for line in lines if line.startswith("qwen3-8b ")).endswith(" eagle3 not here")
    assert next(line for line in lines if line.startswith("qwen3.5-4b ")).endswith("  mtp in its file")
    [entry] = [line for line in lines if line.startswith("qwen2.5-7b ")]
    about = r"Apache-2.0 +Qwen 2.5 7B Instruct +Q4_K_M +qwen2.5-0.5b qwen2.5-1.5b"
    assert re.fullmatch(rf"qwen2.5-7b +~4.7 GB +(?:yes|tight|no) +Q8_0 +{about}", entry)


# --- show -------------------------------------------------------------------------------------------------------------


def test_a_model_is_described_from_its_header(home: Path, kept: Repository) -> None:
    text = text_of(home, "show", "owner/tiny-GGUF:f16", columns=80)
    with LlamaModel(kept.folder / "snapshots" / COMMITS[0] / "deep" / "tiny-F16.gguf") as model:
        assert re.search(rf"\nparameters +{count_of(model.n_params)}\n", text)
        assert re.search(rf"\nvocabulary +{model.n_vocab} tokens, ", text)
    assert re.match(r"named +owner/tiny-GGUF:F16\n", text) and re.search(r"\nweights +F16: F16 .* %", text)
    assert re.search(r"\narchitecture +llama, 2 layers, width 256\n", text)
    # two layers of two heads of 64 numbers, keys and values, of two bytes each
    assert "\nKV cache        1.0 kB per token of context (F16): 2.1 MB for 2048\n" in text
    assert all(len(line) <= 80 for line in text.splitlines() if "snapshots" not in line)


def test_the_template_is_printed_if_asked_for(home: Path, kept: Repository) -> None:
    assert CHATML not in text_of(home, "show", "owner/tiny-GGUF:F16")
    text = text_of(home, "show", "owner/tiny-GGUF:F16", "--template")
    assert text.endswith(f"\n{CHATML}\n")


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("mamba", "KV cache .*none"),
        ("qwen2moe", "experts .*4 in a layer, 2 used"),
        ("gemma3", r"sliding\s+window\s+of\s+32"),
    ],
)
def test_other_architectures_have_other_things_to_tell(home: Path, architecture: str, said: str) -> None:
    write_model(home / "m.gguf", architecture)
    assert re.search(said, text_of(home, "show", "m.gguf"))


def test_what_its_makers_say_is_reported(home: Path) -> None:
    about = {"general.license": "mit", "general.organization": "some \x1b[31mpeople", "general.description": "x " * 400}
    write_model(home / "m.gguf", "llama", metadata=about)
    assert re.search(r"\nlicence +mit\nauthor +some \ufffd\[31mpeople\n", text_of(home, "show", "m.gguf"))


def test_attention_and_special_tokens_of_a_model_are_shown(home: Path, kept: Repository) -> None:
    text = text_of(home, "show", "owner/tiny-GGUF:Q8_0", columns=80)
    assert "\nattention       4 heads, 2 for keys and values, 16 numbers each\n" in text
    assert "\nspecial tokens  bos '<|endoftext|>', eos '<|im_end|>'\n" in text


@pytest.mark.parametrize("kind", ["eagle3", "hydra", "peagle"])
def test_a_draft_head_is_shown_as_one(home: Path, kind: str) -> None:
    head = write_head(home / "head.gguf", draft_tokens=[1, 2, 3], has_vocabulary=False, metadata=TRAINED)
    if kind == "hydra":
        head = write_hydra(home / "head.gguf", metadata=TRAINED)
    if kind == "peagle":
        head = write_peagle(home / "head.gguf", draft_tokens=[1, 2, 3], metadata=TRAINED)
    n_drafts, layers, kv_bytes = (299, [], 0) if kind == "hydra" else (3, [1, 2, 3], 256)
    text = text_of(home, "show", head.name)
    reads = "reads layers 1, 2, 3 of its model" if layers else "3 networks on the final state of its model"
    assert f"{reads}\n" in text
    assert (f"\nKV cache      {kv_bytes} B per token" in text) == (kv_bytes > 0)
    assert re.search(r"\nmade for +tiny \(width 64, 299 tokens\)\n", text)
    assert re.search(rf"\ndrafts +{n_drafts} of these tokens \(-md, --spec-type {kind}\)\n", text)
    assert re.search(r"\ntrained +28 minutes, on 156k tokens\n", text)
    assert re.search(r"\nacceptance +50 %, 25 % of greedy drafts of 1 to 2 tokens", text)
    for nonsense in ("vocabulary", "chat template", "context  ", "special tokens", "none", "suggest"):
        assert nonsense not in text


def test_a_draft_head_that_does_not_say_how_it_was_trained(home: Path) -> None:
    odd: dict[str, Value | None] = {"edgespec.head.training_tokens": "many", "edgespec.head.acceptance": ["high"]}
    write_head(home / "head.gguf", metadata=odd)
    text = text_of(home, "show", "head.gguf")
    assert re.search(r"\nmade for +a model of width 64, 299 tokens\n", text)
    assert "trained" not in text and "acceptance" not in text


def test_a_name_that_several_files_have_is_answered_with_them(home: Path, kept: Repository) -> None:
    same = kept.keep("other-Q8_0.gguf", write_model(home / "c", "llama", seed=1))
    said = edgespec(home, "rm", "-y", "owner/tiny-GGUF:Q8_0", code=3).stderr.decode()
    assert "has several models in Q8_0: other-Q8_0.gguf, tiny-Q8_0.gguf\n  choose one by its file name" in said
    edgespec(home, "rm", "-y", "hf:owner/tiny-GGUF/other-Q8_0.gguf")
    assert not same.exists()


@LINKS
def test_a_link_to_nothing_is_reported_as_such(home: Path) -> None:
    (home / "link.gguf").symlink_to("gone.gguf")
    said = edgespec(home, "show", "link.gguf", code=3).stderr.decode()
    assert said == "edgespec: model file 'link.gguf' was not found: it is a broken link to gone.gguf\n"


def test_what_is_no_model_is_refused_with_the_reason(home: Path) -> None:
    write_embedding_model(home / "a.gguf")
    assert b"an embedding model" in edgespec(home, "run", "x", "-m", "a.gguf", code=3).stderr
    assert b"edgespec pull hf:o/r" in edgespec(home, "show", "hf:o/r", code=3).stderr


# --- rm ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_deleted_without_being_asked(home: Path) -> None:
    path = write_model(home / "mine.gguf", "llama")
    done = edgespec(home, "rm", "mine.gguf", code=2)
    assert b"no terminal to ask for confirmation" in done.stderr and b"-y" in done.stderr
    assert re.fullmatch(r" *\d+\.\d kB  ~.mine\.gguf\n", done.stdout.decode())
    assert path.exists()


@pytest.mark.parametrize(("typed", "stays"), [(b"y\n", False), (b"n\n", True), (b"\n", True)])
def test_on_a_terminal_deleting_asks(home: Path, typed: bytes, stays: bool) -> None:
    path = write_model(home / "mine.gguf", "llama")
    with at_terminal(home, ["rm", "mine.gguf"], streams=["stdin", "stderr"]) as (program, master):
        os.write(master, typed)
        seen = read_rest(master)
        program.wait(60)
    assert re.search(r"Delete \d+\.\d kB\? \[y/N\]", seen)
    assert (program.returncode, path.exists()) == (0, stays)


def test_a_file_is_deleted_and_nothing_else(home: Path) -> None:
    path, other = (write_model(home / name, "llama") for name in ("mine.gguf", "other.gguf"))
    size_bytes = path.stat().st_size
    done = edgespec(home, "rm", "mine.gguf", "-y")
    assert f"{size_of(size_bytes)} deleted" in done.stderr.decode()
    assert (path.exists(), other.exists()) == (False, True)


def test_all_parts_of_a_split_model_go(home: Path) -> None:
    parts = write_split(home, n_parts=3)
    parts[2].unlink()  # incomplete models are deleted too
    assert b"deleted" in edgespec(home, "rm", str(parts[0]), "-y").stderr
    assert [file for file in files_in(home) if file.suffix == ".gguf"] == []


@LINKS
def test_a_file_of_the_cache_goes_with_its_blob(home: Path, kept: Repository) -> None:
    n_files = len(files_in(kept.folder))
    edgespec(home, "rm", "owner/tiny-GGUF:F16", "-y")
    assert len(files_in(kept.folder)) == n_files - 2
    assert scan_cache_dir(home / "hub").warnings == []
    assert [each["model"] for each in objects(home, "ls", "owner")] == ["owner/tiny-GGUF:Q8_0"]


def test_with_the_last_file_the_whole_repository_goes(home: Path, kept: Repository) -> None:
    absent = kept.folder / ".no_exist" / COMMITS[0] / "config.json"
    absent.parent.mkdir(parents=True)
    absent.touch()
    kept.begin()
    edgespec(home, "rm", "owner/tiny-GGUF:F16", "hf:owner/tiny-GGUF/tiny-Q8_0.gguf", "-y")
    assert list((home / "hub").iterdir()) == []


@LINKS
def test_a_blob_that_another_revision_has_too_stays(home: Path, kept: Repository) -> None:
    blob = (kept.folder / "snapshots" / COMMITS[0] / "tiny-Q8_0.gguf").resolve()
    other = kept.keep("tiny-Q8_0.gguf", blob, COMMITS[1], "v1")
    removal = plan_removal(["owner/tiny-GGUF:Q8_0", "owner/tiny-GGUF:F16"])
    assert [(file.freed_bytes > 0, file.remark) for file in removal.files] == [
        (False, "another revision uses it"), (True, ""),
    ]  # fmt: skip
    remove(removal)
    assert other.is_file()
    assert scan_cache_dir(home / "hub").warnings == []
    edgespec(home, "rm", "hf:owner/tiny-GGUF@v1", "-y")
    assert not kept.folder.exists()


@LINKS
def test_a_blob_goes_with_both_of_its_links_and_counts_once(kept: Repository) -> None:
    blob = (kept.folder / "snapshots" / COMMITS[0] / "tiny-Q8_0.gguf").resolve()
    size_bytes = blob.stat().st_size
    kept.keep("tiny-Q8_0.gguf", blob, COMMITS[1], "v1")
    removal = plan_removal(["owner/tiny-GGUF:Q8_0", "owner/tiny-GGUF@v1:Q8_0"])
    assert removal.freed_bytes == size_bytes
    remove(removal)
    assert not blob.exists()


@LINKS
def test_of_a_link_of_the_users_only_the_link_goes(home: Path, kept: Repository) -> None:
    blob = (kept.folder / "snapshots" / COMMITS[0] / "tiny-Q8_0.gguf").resolve()
    (home / "link.gguf").symlink_to(blob)
    assert f"0 B  ~/link.gguf (a link, {blob} stays)" in text_of(home, "rm", "link.gguf", "-y")
    assert not (home / "link.gguf").is_symlink()
    assert blob.is_file()


def test_unfinished_downloads_go_with_a_file_of_their_repository_or_alone(home: Path, kept: Repository) -> None:
    begun, other = kept.begin(), Repository(home, "o/other").begin()
    edgespec(home, "rm", "hf:owner/tiny-GGUF:Q2_K", "-y")  # of this one nothing else is here
    assert not begun.exists()
    edgespec(home, "rm", "hf:owner/tiny-GGUF:F16", "-y")  # the last model
    begun = kept.begin()
    edgespec(home, "rm", "hf:owner/tiny-GGUF:Q8_0", "-y")
    assert not begun.exists() and other.exists()
    edgespec(home, "rm", "o/other:Q8_0", "-y")  # a repository without complete files
    assert list((home / "hub").iterdir()) == []


def test_parts_that_were_downloaded_without_the_first_are_deleted(home: Path) -> None:
    repository = Repository(home, "o/split")
    for part in write_split(home, n_parts=3)[1:]:
        repository.keep(part.name.replace("tiny", "m-Q2_K"), part)
    (home / "tiny-00001-of-00003.gguf").unlink()
    edgespec(home, "rm", "o/split:q2_k", "-y")
    assert not repository.folder.exists()


def test_a_quantisation_that_is_not_here_is_answered_with_those_that_are(home: Path, kept: Repository) -> None:
    said = edgespec(home, "rm", "owner/tiny-GGUF", "-y", code=3).stderr.decode()
    assert "owner/tiny-GGUF on this machine has no Q4_K_M: available:" in said
    for spec in ("hf:o/none", "hf:owner/tiny-GGUF/none.gguf"):
        with pytest.raises(ModelNotFoundError, match="not on this machine"):
            plan_removal([spec])
    assert len(files_in(kept.folder / "snapshots")) == 2


def test_what_is_not_the_users_own_model_is_refused(home: Path) -> None:
    (home / "notes.txt").write_text("mine")
    (home / "folder.gguf").mkdir()
    refused = {"demo": "part of edgespec", str(BUNDLED / "draft.gguf"): "part of edgespec"}
    refused |= {"./notes.txt": "not a GGUF file", "folder.gguf": "not a GGUF file"}
    for spec, why in refused.items():
        with pytest.raises(UsageError, match=why):
            plan_removal([spec])
    edgespec(home, "rm", "-y", "./none.gguf", code=3)


def test_an_unknown_name_is_answered_with_one_that_can_be_deleted(home: Path, kept: Repository) -> None:
    said = edgespec(home, "rm", "-y", "owner/tiny-GUF:Q8_0", code=3).stderr.decode()
    assert "edgespec pull" not in said
    said = edgespec(home, "rm", "-y", "tynee", code=3).stderr.decode()
    assert said.splitlines()[1:] == ["  'edgespec ls' lists the models"]
    said = edgespec(home, "rm", "-y", "dmo", code=3).stderr.decode()
    assert said.splitlines()[1:] == ["  did you mean demo?"]


def test_the_bundled_pair_is_not_deleted_by_another_way_to_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = home / "bundle"
    bundle.mkdir()
    (bundle / "target.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("edgespec.models.hub.removal.NAMES", {"demo": bundle / "target.gguf"})
    specs = ["bundle/../bundle/target.gguf"]
    if os.name != "nt":
        (home / "link").symlink_to(bundle)
        specs.append("link/target.gguf")
    for spec in specs:
        with pytest.raises(UsageError, match="part of edgespec"):
            plan_removal([spec])


def test_a_path_with_dots_is_shown_as_the_file_that_it_is(home: Path) -> None:
    (home / "sub").mkdir()
    path = write_model(home / "mine.gguf", "llama")
    assert re.fullmatch(r" *\d+\.\d kB  ~.mine\.gguf\n", text_of(home, "rm", "sub/../mine.gguf", "-y"))
    assert not path.exists()


def locked(home: Path, repository: str, etag: str) -> FileLock:
    """Lock a file as a download does."""
    path = home / "hub" / ".locks" / f"models--{repository.replace('/', '--')}" / f"{etag}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)


@pytest.mark.parametrize("spec", ["owner/tiny-GGUF:Q2_K", "owner/tiny-GGUF:F16"])
def test_what_a_download_waits_to_go_on_with_is_not_deleted(home: Path, kept: Repository, spec: str) -> None:
    begun = kept.begin()
    with locked(home, "o/other", "a" * 64), locked(home, "owner/tiny-GGUF", begun.stem):
        said = edgespec(home, "rm", spec, "-y", code=1).stderr.decode()
        assert "nothing of owner/tiny-GGUF was deleted: a download from it is running" in said
        assert begun.exists()
    edgespec(home, "rm", spec, "-y")
    assert not begun.exists()


def test_what_a_download_goes_on_with_by_the_time_of_the_answer_is_not_deleted(home: Path, kept: Repository) -> None:
    begun = kept.begin()
    removal = plan_removal(["owner/tiny-GGUF"])
    with locked(home, "owner/tiny-GGUF", begun.stem), pytest.raises(EdgespecError, match="a download from it"):
        remove(removal)
    remove(removal)
    assert not begun.exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a folder that may not be written")
def test_a_folder_that_may_not_be_written_is_named(home: Path) -> None:
    (home / "closed").mkdir()
    path = write_model(home / "closed" / "mine.gguf", "llama")
    path.parent.chmod(0o500)
    with pytest.raises(EdgespecError, match="cannot be deleted: Permission denied"):
        remove(plan_removal([str(path)]))
    path.parent.chmod(0o700)
