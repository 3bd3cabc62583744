"""An answer that takes minutes, for tests that end an answer before its end: a test may be late on a busy machine."""

from __future__ import annotations

from edgespec.settings import Request

CTX_SIZE = 32768  # far above what the demo model was trained for
TOO_LONG = "x = 1\n" * CTX_SIZE  # a prompt with more tokens than that
ENDLESS = Request("def fibonacci(n):", max_tokens=30_000, ignore_eos=True)
ENDLESS_BODY = {"prompt": ENDLESS.prompt, "max_tokens": ENDLESS.max_tokens, "ignore_eos": True, "stream": True}
ENDLESS_OPTIONS = ("-c", str(CTX_SIZE), "-n", str(ENDLESS.max_tokens), "--ignore-eos")
