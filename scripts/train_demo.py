"""Train the bundled pair: a small target and a smaller draft, on CPython's own standard library.

    pip install torch==2.13.0 tokenizers gguf numpy
    python scripts/train_demo.py --work WORK --minutes 75 --draft-minutes 20 --out models/demo

Stages, each resumed from WORK when it was interrupted: text (source files, and ChatML turns made from docstrings),
byte-level BPE, target, draft (taught by the text and by the target's own next-token distributions), GGUF, model card.
Learning rates follow the clock, not a step count, so a run ends on time on any machine; a GPU is used where there is
one. PyTorch is needed by this script only, never by the package.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone uses
from demo_texts import END, TURN, TURN_END, VOCAB_SIZE, load_tokens
from torch import Tensor, nn

CONTEXT = 1024
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """The dimensions of one Llama-architecture model."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


SHARES = {"chat": 0.50, "code": 0.42, "tests": 0.08}  # of library source, its tests, and questions with answers
TARGET = Shape(width=256, layers=10, heads=4, kv_heads=2, ffn=768)
DRAFT = Shape(width=96, layers=2, heads=3, kv_heads=1, ffn=256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and tokens")
    parser.add_argument("--out", type=Path, default=Path("models/demo"))
    parser.add_argument("--minutes", type=float, default=75, help="training time of the target")
    parser.add_argument("--draft-minutes", type=float, default=20, help="training time of the draft")
    parser.add_argument("--batch", type=int, default=8, help="sequences of 1,024 tokens per step")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)

    parts = load_tokens(args.work)
    target, target_log = train("target", TARGET, parts, args.minutes, args.batch, args.work)
    draft, draft_log = train("draft", DRAFT, parts, args.draft_minutes, args.batch, args.work, teacher=target)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, model in (("target", target), ("draft", draft)):
        export_gguf(model, name, args.work / "tokenizer.json", args.out / f"{name}.gguf")
    metrics = {"target": target_log, "draft": draft_log}
    (args.out / "training.json").write_text(json.dumps(metrics, indent=1) + "\n")
    print(json.dumps(metrics, indent=1))


# --- model --------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.width, shape.kv_heads * shape.head_dim
        self.attn_norm = nn.RMSNorm(width, eps=1e-5)
        self.attn_q = nn.Linear(width, width, bias=False)
        self.attn_k = nn.Linear(width, kv_width, bias=False)
        self.attn_v = nn.Linear(width, kv_width, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = nn.RMSNorm(width, eps=1e-5)
        self.ffn_gate = nn.Linear(width, shape.ffn, bias=False)
        self.ffn_up = nn.Linear(width, shape.ffn, bias=False)
        self.ffn_down = nn.Linear(shape.ffn, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        h = self.attn_norm(x)
        q = rotate(self.attn_q(h).view(batch, length, -1, self.shape.head_dim), cos, sin)
        k = rotate(self.attn_k(h).view(batch, length, -1, self.shape.head_dim), cos, sin)
        v = self.attn_v(h).view(batch, length, -1, self.shape.head_dim)
        groups = self.shape.heads // self.shape.kv_heads
        k, v = (t.repeat_interleave(groups, dim=2) for t in (k, v))
        mixed = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + self.attn_output(mixed.transpose(1, 2).reshape(batch, length, -1))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):
    """The Llama architecture with tied embeddings; tensor names follow GGUF's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(VOCAB_SIZE, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=1e-5)
        angles = torch.outer(torch.arange(CONTEXT), 10000.0 ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim))
        self.register_buffer("cos", angles.cos()[None, :, None, :], persistent=False)
        self.register_buffer("sin", angles.sin()[None, :, None, :], persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = 0.02 / math.sqrt(2 * shape.layers) if name.endswith(("output.weight", "down.weight")) else 0.02
                nn.init.normal_(parameter, std=scale)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64[B, T] -> logits [B, T, V]."""
        length = tokens.shape[1]
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x, self.cos[:, :length], self.sin[:, :length])
        return F.linear(self.output_norm(x), self.token_embd.weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions over adjacent pairs, llama.cpp's order for this architecture."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


# --- training -----------------------------------------------------------------------------------------------------


def train(
    name: str,
    shape: Shape,
    parts: dict[str, np.ndarray],
    minutes: float,
    batch: int,
    work: Path,
    teacher: Llama | None = None,
    start: Llama | None = None,
) -> tuple[Llama, dict[str, Any]]:
    """Train until `minutes` of training time are spent, from the weights of `start` on or from scratch; with a teacher,
    most of the loss is its next-token distribution."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    checkpoint = work / f"{name}.pt"
    model = (start or Llama(shape)).to(device)
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and n != "token_embd.weight"]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or n == "token_embd.weight"]
    optimizers: list[tuple[torch.optim.Optimizer, float]] = [
        (torch.optim.Muon(matrices, lr=3e-3, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"), 3e-3),
        (torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0), 3e-3),
    ]
    state: dict[str, Any] = {"step": 0, "elapsed_s": 0.0}
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        for (optimizer, _), values in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        state = saved["state"]
        print(f"{name}: resumed at step {state['step']}, {state['elapsed_s'] / 60:.1f} min", flush=True)
    guide = teacher.to(device).eval().requires_grad_(False) if teacher is not None else None

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            logits = model(inputs).flatten(0, 1).float()
            loss = F.cross_entropy(logits, targets.flatten())
            if guide is None:
                return loss
            return 0.3 * loss + 0.7 * F.cross_entropy(logits, guide(inputs).flatten(0, 1).float().softmax(-1))

    compiled_loss = torch.compile(loss_of, dynamic=False)

    budget_s, last_save = minutes * 60, time.monotonic()
    while state["elapsed_s"] < budget_s:
        started = time.monotonic()
        rng = np.random.default_rng([state["step"], len(name)])
        progress = state["elapsed_s"] / budget_s
        rate = min(1.0, (state["step"] + 1) / 50) * min(1.0, max(0.02, (1 - progress) / 0.4))
        for optimizer, peak in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * rate
        tokens = sample_batch(parts, batch, rng)
        if progress < 0.8:  # short windows first: attention is a third of the cost at full length
            tokens = torch.cat((tokens[:, : CONTEXT // 2 + 1], tokens[:, CONTEXT // 2 :]))
        tokens = tokens.to(device)
        loss = compiled_loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state["step"] += 1
        # Steps that compile are no training time.
        state["elapsed_s"] += min(time.monotonic() - started, 10.0)
        if state["step"] % 20 == 0:
            rate_tokens = state["step"] * batch * CONTEXT / state["elapsed_s"]
            print(
                f"{name} step {state['step']} {state['elapsed_s'] / 60:.1f}/{minutes:.0f} min "
                f"loss {loss.item():.3f} {rate_tokens:.0f} tokens/s",
                flush=True,
            )
        if time.monotonic() - last_save > 180:
            last_save = time.monotonic()
            save(checkpoint, model, optimizers, state)
    save(checkpoint, model, optimizers, state)
    log = {
        "shape": asdict(shape),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_seen": state["step"] * batch * CONTEXT,
        "training_minutes": round(state["elapsed_s"] / 60, 1),
        "device": device,
        "held_out_loss": {
            part: held_out_loss(model, parts[f"{part}-held-out"])
            for part in ("code", "chat")
            if f"{part}-held-out" in parts
        },
    }
    return model.cpu(), log


def sample_batch(parts: dict[str, np.ndarray], batch: int, rng: np.random.Generator) -> Tensor:
    """int64[batch, CONTEXT + 1]: random windows of the parts that there are, by their shares."""
    rows = []
    known = [part for part in SHARES if part in parts]
    shares = np.array([SHARES[part] for part in known])
    for part in rng.choice(known, size=batch, p=shares / shares.sum()):
        start = int(rng.integers(0, len(parts[part]) - CONTEXT - 1))
        rows.append(parts[part][start : start + CONTEXT + 1].astype(np.int64))
    return torch.from_numpy(np.stack(rows))


def save(
    path: Path, model: Llama, optimizers: list[tuple[torch.optim.Optimizer, float]], state: dict[str, Any]
) -> None:
    torch.save(
        {"model": model.state_dict(), "optimizers": [o.state_dict() for o, _ in optimizers], "state": state},
        path.with_suffix(".tmp"),
    )
    path.with_suffix(".tmp").replace(path)


@torch.no_grad()
def held_out_loss(model: Llama, tokens: np.ndarray) -> float:
    """Mean cross-entropy in nats a token over consecutive windows (at most 100 of them)."""
    device = next(model.parameters()).device
    losses = []
    for start in range(0, min(len(tokens) - CONTEXT - 1, 100 * CONTEXT), CONTEXT):
        window = torch.from_numpy(tokens[start : start + CONTEXT + 1].astype(np.int64)).to(device)[None]
        losses.append(F.cross_entropy(model(window[:, :-1])[0], window[0, 1:]).item())
    return round(float(np.mean(losses)), 4)


# --- GGUF ---------------------------------------------------------------------------------------------------------


def export_gguf(model: Llama, name: str, tokenizer_path: Path, path: Path) -> None:
    """Write the model as Q8_0 (norms in F32), with its tokenizer and chat template."""
    import gguf

    shape = model.shape
    vocabulary = json.loads(tokenizer_path.read_text(encoding="utf-8"))["model"]
    tokens = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    special = {END, TURN, TURN_END}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"edgespec demo {name}")
    writer.add_description("Trained on CPython's standard library by scripts/train_demo.py")
    writer.add_license("MIT")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]])
    writer.add_bos_token_id(tokens.index(END))
    writer.add_eos_token_id(tokens.index(TURN_END))
    writer.add_pad_token_id(tokens.index(END))
    writer.add_add_bos_token(True)  # in training a document always followed the end of another
    writer.add_chat_template(CHAT_TEMPLATE)
    for tensor_name, tensor in model.state_dict().items():
        array = tensor.float().numpy()
        kind = gguf.GGMLQuantizationType.Q8_0 if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor_name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
