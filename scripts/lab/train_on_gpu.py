"""Train draft heads for a target of the architecture `llama` on one GPU; needs PyTorch.

    python scripts/lab/train_on_gpu.py smollm2 --out heads --heads eagle3:325,hydra:50 --answers-s 95 --prompts-s 20

PyTorch computes the target, from the weights of its GGUF file. The target first writes prompts, then it answers these
prompts and bundled ones, a few thousand at a time. All texts of such a wave are at the same position, and prompts are
fed token by token, so that one CUDA graph is a step for all of them. Then heads learn from the answers. The states that
a head reads are not stored, as `edgespec draft train` does, but computed again for every batch. On an H200,
SmolLM2-135M writes 70,000 tokens of answers a second, and an eagle3 head learns from 100,000.

The answers stay in `answers.npz` in the folder, and are used if they are there. A table for token recycling is counted
from them. An earlier form of this script made the heads and the table in `models/heads`.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

try:
    import torch
    import torch.nn.functional as F  # noqa: N812 - the name everyone uses
    from torch import Tensor
except ImportError:
    raise SystemExit("train_on_gpu.py needs PyTorch: pip install torch") from None

from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model
from edgespec.gguf_file.weights import read_rows
from edgespec.models.names.spec import resolve
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request
from edgespec.training import trainer
from edgespec.training.answers import end_token, load_settings
from edgespec.training.batches import FEWEST_ANSWER, Batch
from edgespec.training.features import SAMPLED, TrainingRow, default_layers
from edgespec.training.gguf_files import Teacher, read_teacher, shape_of, write_head
from edgespec.training.heads import Shape, Weights
from edgespec.training.job import LICENCE, Settings
from edgespec.training.layers import rotate, split_heads
from edgespec.training.ngram import Averages, save_table
from edgespec.training.prompts import PASSAGE_KINDS, bundled_prompt, held_out

TYPE = torch.float16  # of the target's weights; logits are float32, because those of 16 bits are often equal
ROWS, LENGTH, LONGEST_ANSWER, LONGEST_PROMPT = 3072, 512, 320, 160  # texts of a wave, and tokens
MIN_P, MIN_P_PROMPTS = 0.05, 0.02
SELF_WRITTEN = 0.7  # share of the prompts that the target wrote
BUNDLED = 20_000  # prompts from the lists of `draft train`
GRAPH_EVERY = 64  # cells: a step attends to as many cells as are a multiple of this
AT_ONCE = 8192  # rows of logits
OUTPUT_RATE = 4 * trainer.OUTPUT_RATE  # because a step has sixteen times as many tokens as in `draft train`


@dataclass(slots=True)
class Text:
    """A prompt with its answer."""

    tokens: NDArray[np.uint16]
    n_prompt: int
    temperature: float
    is_held_out: bool


class Target:
    """A model of the architecture `llama` in PyTorch."""

    def __init__(self, header: Header, device: str) -> None:
        self.header, self.device = header, device
        self.heads, self.kv_heads = (header.number(f"attention.head_count{name}") for name in ("", "_kv"))
        self.head_dim = header.head_sizes[0]
        self.base = float(header.metadata["llama.rope.freq_base"])  # type: ignore[arg-type]
        self.eps = float(header.metadata["llama.attention.layer_norm_rms_epsilon"])  # type: ignore[arg-type]

        def weight(*names: str) -> Tensor:
            return torch.cat([torch.from_numpy(read_rows(header, f"{name}.weight")) for name in names]).to(device)

        self.embedding = weight("token_embd").to(TYPE)
        self.output = weight("output" if "output.weight" in header.tensors else "token_embd")
        self.output_norm = weight("output_norm")
        self.layers = [
            {
                "attn_norm": weight(f"blk.{n}.attn_norm"),
                "ffn_norm": weight(f"blk.{n}.ffn_norm"),
                "qkv": weight(*(f"blk.{n}.attn_{part}" for part in "qkv")).to(TYPE),
                "attn_output": weight(f"blk.{n}.attn_output").to(TYPE),
                "ffn_in": weight(f"blk.{n}.ffn_gate", f"blk.{n}.ffn_up").to(TYPE),
                "ffn_down": weight(f"blk.{n}.ffn_down").to(TYPE),
            }
            for n in range(header.number("block_count"))
        ]

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], None, self.eps) * weight

    def qkv(self, x: Tensor, layer: dict[str, Tensor], positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, [B, H, N, d], of a layer's input [B, N, D]."""
        joined = F.linear(self.normed(x, layer["attn_norm"]).to(TYPE), layer["qkv"])
        q, k, v = joined.split([n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)], -1)
        q, k = (rotate(split_heads(each, n), positions, self.base) for each, n in ((q, self.heads), (k, self.kv_heads)))
        return q, k, split_heads(v, self.kv_heads)

    def after_attention(self, x: Tensor, attended: Tensor, layer: dict[str, Tensor]) -> Tensor:
        """The layer's output from its input x and the heads' results, [..., H d]."""
        x = x + F.linear(attended, layer["attn_output"]).float()
        gate, up = F.linear(self.normed(x, layer["ffn_norm"]).to(TYPE), layer["ffn_in"]).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, layer["ffn_down"]).float()

    def read(self, tokens: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """From tokens [B, L], return the inputs of `layers` next to each other, [B, L, n D], and the normed final
        states [B, L, D]."""
        x, seen = F.embedding(tokens, self.embedding).float(), []
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        for number, layer in enumerate(self.layers):
            if number in layers:
                seen.append(x)
            q, k, v = self.qkv(x, layer, positions)
            groups = self.heads // self.kv_heads
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = self.after_attention(x, attended.transpose(1, 2).flatten(-2), layer)
        return torch.cat(seen, -1), self.normed(x, self.output_norm)


class Writer:
    """Writes up to `rows` texts of at most `length` tokens at a time."""

    def __init__(self, target: Target, rows: int, length: int, min_p: float, end: int) -> None:
        self._target, self.rows, self.length, self._min_p, self._end = target, rows, length, min_p, end
        device, cache = target.device, (len(target.layers), 2, rows, target.kv_heads, length, target.head_dim)
        self._cache = torch.zeros(cache, dtype=TYPE, device=device)
        self._tokens = torch.zeros(rows, length + 1, dtype=torch.long, device=device)
        self._n_prompt, self._limit, self._length = torch.zeros(3, rows, dtype=torch.long, device=device)
        self._temperature, self._noise = torch.ones(2, rows, 1, device=device)
        self._position = torch.zeros(1, dtype=torch.long, device=device)
        self._steps: dict[int, Callable[[], None]] = {}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def write(self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], longest: int) -> list[list[int]]:
        """Return the answers, with the end token if they ended within `longest` tokens."""
        n = len(prompts)
        tokens, n_prompt = np.zeros((self.rows, self.length + 1), np.int64), np.ones(self.rows, np.int64)
        temperature = np.zeros(self.rows, np.float32)
        temperature[:n] = temperatures
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)], n_prompt[row] = prompt, len(prompt)
        for buffer, values in (
            (self._tokens, tokens),
            (self._n_prompt, n_prompt),
            (self._limit, np.minimum(n_prompt + longest, self.length)),
            (self._temperature, np.where(temperature > 0, temperature, 1)[:, None]),
            (self._noise, (temperature > 0)[:, None]),
        ):
            buffer.copy_(torch.from_numpy(values))
        self._length.zero_()
        self._length[n:] = 1
        self._position.zero_()
        for position in range(self.length - 1):
            self._step_over(min(self.length, GRAPH_EVERY * (1 + position // GRAPH_EVERY)))()
            if position % 16 == 15 and bool((self._length > 0).all()):
                break
        grid, ends = self._tokens.cpu().numpy(), self._length.cpu().numpy()
        return [grid[row, len(prompt) : ends[row]].tolist() for row, prompt in enumerate(prompts)]

    def _step_over(self, n_cells: int) -> Callable[[], None]:
        """A step that attends to `n_cells` cells, as a CUDA graph where there is a GPU."""
        if self._target.device == "cpu":
            return lambda: self._step(n_cells)
        if n_cells not in self._steps:
            state = (self._tokens, self._length, self._position)
            kept = [each.clone() for each in state]
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # kernels must have run once before they are captured
                self._step(n_cells)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step(n_cells)
            for each, old in zip(state, kept, strict=True):
                each.copy_(old)
            self._steps[n_cells] = graph.replay
        return self._steps[n_cells]

    def _step(self, n_cells: int) -> None:
        target, position = self._target, self._position
        x = F.embedding(self._tokens.index_select(1, position), target.embedding).float()  # [B, 1, D]
        later = torch.arange(n_cells, device=target.device) > position
        for number, layer in enumerate(target.layers):
            q, *own = target.qkv(x, layer, position[None])
            for cache, values in zip(self._cache[number], own, strict=True):
                cache.index_copy_(2, position, values)
            k, v = self._cache[number, :, :, :, :n_cells]
            q = q[:, :, 0].unflatten(1, (target.kv_heads, -1))  # the heads of a group share keys and values
            scores = (q @ k.transpose(-1, -2)).float() * target.head_dim**-0.5
            share = scores.masked_fill(later, -torch.inf).softmax(-1).to(TYPE)
            x = target.after_attention(x, (share @ v).flatten(1)[:, None], layer)
        logits = F.linear(target.normed(x[:, 0], target.output_norm), target.output) / self._temperature
        logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + math.log(self._min_p), -torch.inf)
        noise = torch.empty_like(logits).exponential_().log_()  # Gumbel noise, negated
        chosen, following = (logits - noise * self._noise).argmax(-1), position + 1
        is_prompt, is_over = following < self._n_prompt, self._length > 0
        token = torch.where(is_prompt, self._tokens.index_select(1, following)[:, 0], chosen.masked_fill(is_over, 0))
        self._tokens.index_copy_(1, following, token[:, None])
        ends = ~is_prompt & ~is_over & ((chosen == self._end) | (following + 1 >= self._limit))
        self._length.copy_(torch.where(ends, following + 1, self._length))
        self._position += 1


class Prompts:
    """Prompts as token ids. `before` and `after` are what the chat template writes around a user's first message."""

    def __init__(self, llm: Runtime, chance: random.Random) -> None:
        def ids(text: str) -> list[int]:
            return llm.tokenize(Request(messages=(Message("user", text),)))

        one, other = ids("xyzzy"), ids("Plugh")
        n_before = next(n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        n_after = next(n for n, (a, b) in enumerate(zip(one[::-1], other[::-1], strict=False)) if a != b)
        end = end_token(llm.model)
        if end is None or n_after == 0:
            raise SystemExit("the target needs a chat template and an end token")
        self.before, self.after, self.end = one[:n_before], one[-n_after:], end
        self.held_out = [ids(prompt.text) for prompt in held_out(chat=True)]
        asked = {bundled_prompt(chance.getrandbits(40)) for _ in range(BUNDLED)}
        self.bundled = [ids(text) for kind, text in sorted(asked) if kind not in PASSAGE_KINDS]


def write_answers(
    target: Target, prompts: Prompts, prompts_s: float, answers_s: float, rows: int, chance: random.Random
) -> list[Text]:
    """Let the target write prompts for `prompts_s` seconds, and then answers for `answers_s` seconds."""
    known = {*map(tuple, prompts.bundled)}
    own: list[list[int]] = []
    writer, started = Writer(target, rows, LENGTH // 2, MIN_P_PROMPTS, prompts.end), time.monotonic()
    while time.monotonic() - started < prompts_s:
        for ids in writer.write([prompts.before] * rows, [1.0] * rows, LONGEST_PROMPT):
            written = (*prompts.before, *ids[:-1], *prompts.after)
            if len(ids) > 4 and ids[-1] == prompts.end and written not in known:
                known.add(written)
                own.append([*written])
    print(f"{len(own)} prompts", flush=True)
    del writer
    texts, started = list[Text](), time.monotonic()
    writer = Writer(target, rows, LENGTH, MIN_P, prompts.end)
    wave = [(prompt, t, True) for prompt in prompts.held_out for t in (0.0, SAMPLED)]
    while wave or time.monotonic() - started < answers_s:
        while len(wave) < rows:
            prompt = own.pop() if own and chance.random() < SELF_WRITTEN else chance.choice(prompts.bundled)
            wave.append((prompt, chance.choice((0.0, SAMPLED)), False))
        now = [each for each in wave[:rows] if len(each[0]) < LENGTH - GRAPH_EVERY]
        answers = writer.write([prompt for prompt, _, _ in now], [t for _, t, _ in now], LONGEST_ANSWER)
        for (prompt, temperature, is_held_out), answer in zip(now, answers, strict=True):
            if len(answer) > FEWEST_ANSWER:
                texts.append(Text(np.array(prompt + answer, np.uint16), len(prompt), temperature, is_held_out))
        wave = wave[rows:]
    return texts


class Data:
    """Batches of texts on the device, with what the target computes for them."""

    def __init__(self, target: Target, layers: Sequence[int]) -> None:
        self._target, self._layers = target, layers

    def groups(self, texts: Sequence[Text], n_tokens: int, seed: int) -> Iterator[list[Text]]:
        """Yield texts of similar lengths together, in a random order of the groups."""
        chance = random.Random(seed)
        texts = sorted(texts, key=lambda text: len(text.tokens) * chance.uniform(0.85, 1.18))
        size = max(1, n_tokens // max(1, int(np.mean([len(text.tokens) - text.n_prompt for text in texts]))))
        starts = list(range(0, len(texts), size))
        chance.shuffle(starts)
        yield from (texts[start : start + size] for start in starts)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def batch(self, texts: Sequence[Text], depth: int) -> Batch:
        target, device = self._target, self._target.device
        lengths = np.array([len(text.tokens) for text in texts])
        grid = np.zeros((len(texts), lengths.max()), np.int64)
        for row, text in enumerate(texts):
            grid[row, : len(text.tokens)] = text.tokens
        tokens, length = torch.from_numpy(grid).to(device), torch.from_numpy(lengths).to(device)
        start = torch.tensor([text.n_prompt - 1 for text in texts], device=device)
        anchors = length - start - 2
        most = int(anchors.max())
        inputs, final = target.read(tokens, self._layers)
        cells = start[:, None] + torch.arange(most + depth, device=device)
        rows = torch.arange(len(texts), device=device)[:, None]
        hidden = final[rows, cells.clamp(max=final.shape[1] - 1)] * (cells < length[:, None])[..., None]
        judged = hidden[:, 1:].flatten(0, 1)
        normalisers, best = [], []
        for part in judged.split(AT_ONCE):
            logits = F.linear(part, target.output)
            normalisers.append(torch.stack((logits.logsumexp(-1), (logits / SAMPLED).logsumexp(-1)), -1))
            best.append(logits.argmax(-1))
        steps = torch.arange(most, device=device) + torch.arange(depth, device=device)[:, None]
        return Batch(
            inputs=inputs,
            tokens=tokens,
            start=start,
            anchors=anchors,
            hidden=hidden,
            normalisers=torch.cat(normalisers).unflatten(0, (len(texts), -1)),
            best=torch.cat(best).unflatten(0, (len(texts), -1)),
            is_text=steps[:, None] < anchors[None, :, None],
        )


def train(
    shape: Shape, teacher: Teacher, data: Data, texts: Sequence[Text], seconds: float, n_tokens: int, device: str
) -> tuple[Weights, dict[str, object]]:
    """Return the weights of a head, and its metadata."""
    learned = [text for text in texts if not text.is_held_out]
    kept = [text for text in texts if text.is_held_out]
    sample = data.batch(learned[:32], shape.deepest).inputs.flatten(0, 1)
    initial = shape.initial(teacher.output.cpu(), teacher.output_norm.cpu(), sample.square().mean(0).sqrt().cpu())
    weights = {name: weight.to(device).float().contiguous().requires_grad_() for name, weight in initial.items()}
    optimizers, value = trainer.optimizers(weights, OUTPUT_RATE), math.nan
    step, seen, epoch, started = 0, 0, 0, time.monotonic()
    while (done := (time.monotonic() - started) / seconds) < 1:
        for group in data.groups(learned, n_tokens, epoch):
            if (done := (time.monotonic() - started) / seconds) >= 1:
                break
            batch = data.batch(group, shape.deepest)
            trainer.set_rates(optimizers, step, done)
            with torch.autocast(device, torch.bfloat16):
                loss = trainer.loss_of(weights, shape, teacher, batch, shape.deepest)
            value = trainer.take_step(loss, weights, optimizers)
            if not math.isfinite(value):
                raise SystemExit(f"the training of the head has diverged at step {step}")
            step, seen = step + 1, seen + batch.n_anchors
        epoch += 1
    judged = (
        (float(is_sampled), data.batch(group, shape.deepest))
        for is_sampled in (False, True)
        for group in data.groups([text for text in kept if bool(text.temperature) == is_sampled], n_tokens // 2, 0)
    )
    with torch.autocast(device, torch.bfloat16), torch.no_grad():
        found = trainer.acceptance(weights, shape, teacher, judged, shape.deepest)
    print(f"{step} steps, {seen} tokens seen, loss {value:.2f}, accepted {found}", flush=True)
    about = {
        "general.license": LICENCE,
        "edgespec.head.training_tokens": sum(len(text.tokens) - text.n_prompt for text in learned),
        "edgespec.head.training_minutes": seconds / 60,
        "edgespec.head.acceptance": found.greedy,
    }
    return {name: weight.detach().float().cpu() for name, weight in weights.items()}, about


def write_ngram(file: Path, header: Header, texts: Sequence[Text]) -> None:
    """Write a table for token recycling, from counts: there are so many answers that their probabilities add little."""
    averages, rows, n_learned = Averages(), list[TrainingRow](), 0
    for text in texts:
        tokens, n = text.tokens.tolist(), text.n_prompt
        if text.is_held_out:
            rows.append(TrainingRow("", text.temperature, True, tokens[:n], tokens[n:]))
            continue
        for place in range(n, len(tokens)):
            before, token, following = tokens[place - 2 : place + 1]
            averages.add_place(before, token, {following: 1.0})
        n_learned += len(tokens) - n
    accepted = save_table(averages, file, header, rows, n_learned)
    print(f"{file}: drafts of 1, 2, 3 tokens are right in {accepted}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train draft heads on one GPU")
    parser.add_argument("target", help="a model with a chat template, of the architecture llama")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for the answers and the heads")
    parser.add_argument("--heads", default="eagle3:300", help="kinds, each with its seconds of training")
    parser.add_argument("--prompts-s", type=float, default=20.0, help="seconds in which the target writes prompts")
    parser.add_argument("--answers-s", type=float, default=95.0, help="seconds in which the target answers")
    parser.add_argument("--vocab", type=int, default=4096, help="tokens that the heads can draft")
    parser.add_argument("--type", default="Q8_0", help="type of the heads' weights")
    parser.add_argument("--rows", type=int, default=ROWS, help="texts that are written at the same time")
    parser.add_argument("--anchors", type=int, default=16384, help="tokens of a training step")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    header = check_model(resolve(args.target).path)
    if header.architecture != "llama" or header.n_vocab > 1 << 16:
        raise SystemExit("the target must have the architecture llama, and at most 65,536 tokens")
    args.out.mkdir(parents=True, exist_ok=True)
    target, texts = Target(header, device), list[Text]()
    file = args.out / "answers.npz"
    if not file.exists():
        with Runtime(load_settings(Settings(header.path, args.out), 1)) as llm:
            prompts = Prompts(llm, random.Random(0))
        texts = write_answers(target, prompts, args.prompts_s, args.answers_s, args.rows, random.Random(0))
        about = [(len(text.tokens), text.n_prompt, text.temperature, text.is_held_out) for text in texts]
        np.savez_compressed(file, about=about, tokens=np.concatenate([text.tokens for text in texts]))
    with np.load(file) as saved:
        ends = np.cumsum(saved["about"][:, 0].astype(int))
        parts = np.split(saved["tokens"], ends[:-1])
        texts = [
            Text(part, int(n), float(t), bool(h)) for part, (_, n, t, h) in zip(parts, saved["about"], strict=True)
        ]
    print(f"{sum(len(text.tokens) - text.n_prompt for text in texts)} tokens of {len(texts)} answers", flush=True)
    answers = [text.tokens[text.n_prompt :] for text in texts if not text.is_held_out]
    counts = np.bincount(np.concatenate(answers), minlength=header.n_vocab)
    vocabulary = np.sort(np.argsort(-counts, kind="stable")[: args.vocab])
    layers = default_layers(header.number("block_count"))
    teacher, data = read_teacher(header, vocabulary).to(device), Data(target, layers)
    write_ngram(args.out / "recycling.ngram", header, texts)
    for kind, seconds in (part.split(":") for part in args.heads.split(",")):
        shape = shape_of(header, len(vocabulary), kind)
        weights, about_head = train(shape, teacher, data, texts, float(seconds), args.anchors, device)
        write_head(args.out / f"{kind}.gguf", shape, weights, vocabulary, header, layers, args.type, about_head)


if __name__ == "__main__":
    main()
