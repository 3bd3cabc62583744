"""Bodies of SillyTavern, as its `textgen-settings.js` builds them from its default settings for each kind of server."""

from __future__ import annotations

from typing import Any

import pytest
from serving import Serving, posted

pytestmark = [pytest.mark.native, pytest.mark.cli]
PROMPT = "Ada is a captain.\nUser: Where are we?\nAda:"
STOPS = ["\nUser:", "\n***"]
SHARED: dict[str, Any] = {
    "prompt": PROMPT,
    "max_new_tokens": 12,
    "max_tokens": 12,
    "temperature": 0.7,
    "top_p": 0.5,
    "typical_p": 1,
    "typical": 1,
    "sampler_seed": 3,
    "min_p": 0,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "top_k": 40,
    "skew": 0,
    "min_tokens": 0,
    "add_bos_token": True,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "dry_allowed_length": 2,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_sequence_breakers": '["\\n", ":", "\\"", "*"]',
    "dry_penalty_last_n": 0,
    "max_tokens_second": 0,
    "stopping_strings": STOPS,
    "stop": STOPS,
    "truncation_length": 8192,
    "ban_eos_token": False,
    "skip_special_tokens": True,
    "include_reasoning": True,
    "top_a": 0,
    "tfs": 1,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "custom_token_bans": "",
    "banned_strings": [],
    "api_server": "http://127.0.0.1:8080/",
    "xtc_threshold": 0.1,
    "xtc_probability": 0,
    "nsigma": 0,
    "top_n_sigma": 0,
    "min_keep": 0,
    "adaptive_target": -0.01,
    "adaptive_decay": 0.9,
    "rep_pen": 1.2,
    "rep_pen_range": 64,
    "repetition_penalty_range": 64,
    "seed": 3,
    "guidance_scale": 1,
    "negative_prompt": "",
    "repeat_penalty": 1.2,
    "repeat_last_n": 64,
    "n_predict": 12,
    "num_predict": 12,
    "num_ctx": 8192,
    "mirostat": 0,
    "ignore_eos": False,
    "rep_pen_slope": 1,
}
OF_LLAMA_CPP: dict[str, Any] = {
    "api_type": "llamacpp",
    "samplers": [
        "penalties",
        "dry",
        "top_n_sigma",
        "top_k",
        "typ_p",
        "top_p",
        "min_p",
        "xtc",
        "temperature",
        "adaptive_p",
    ],
    "n": 1,
    "logit_bias": [],
    "grammar": "",
    "cache_prompt": True,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
}
OF_KOBOLD: dict[str, Any] = {
    "api_type": "koboldcpp",
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "trim_stop": True,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
}
OF_TEXT_GENERATION_WEBUI: dict[str, Any] = {
    "api_type": "ooba",
    "min_length": 0,
    "num_beams": 1,
    "length_penalty": 1,
    "early_stopping": False,
    "sampler_priority": [
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "dry", "temperature", "dynamic_temperature"),
        *("quadratic_sampling", "top_n_sigma", "top_k", "top_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "tfs"),
        *("top_a", "min_p", "adaptive_p", "mirostat", "xtc", "encoder_repetition_penalty", "no_repeat_ngram"),
    ],
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "penalty_alpha": 0,
    "temperature_last": True,
    "do_sample": True,
}
OF_TABBY: dict[str, Any] = {
    "api_type": "tabby",
    "n": 1,
    "repetition_decay": 0,
    "temperature_last": True,
    "speculative_ngram": False,
}
OF_APHRODITE: dict[str, Any] = {
    "api_type": "aphrodite",
    "n": 1,
    "temperature_last": True,
    "eta_cutoff": 0,
    "epsilon_cutoff": 0,
    "spaces_between_special_tokens": True,
    "early_stopping": False,
    "include_stop_str_in_output": False,
    "custom_token_bans": [],
    "no_repeat_ngram_size": 0,
}
OLDER: dict[str, Any] = {
    "samplers": ["top_k", "tfs_z", "typical_p", "top_p", "min_p", "temperature"],
    "tfs_z": 1,
    "seed": 3,
}
OLLAMA = [
    *("num_predict", "num_ctx", "stop", "temperature", "repeat_penalty", "presence_penalty", "frequency_penalty"),
    *("top_k", "top_p", "typical_p", "seed", "repeat_last_n", "mirostat", "mirostat_tau", "mirostat_eta", "min_p"),
]
GENERIC = ["prompt", "max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty", "stop", "seed"]

SEEN: dict[str, Any] = {"temperature": 0.7, "top_k": 40, "top_p": 0.5, "min_p": 0, "repeat_penalty": 1.2, "seed": 3}
SEEN |= {"stop": STOPS, "max_tokens": 12}


@pytest.mark.parametrize(
    "own", [OF_KOBOLD, OF_TEXT_GENERATION_WEBUI, OF_TABBY, OF_APHRODITE], ids=lambda own: str(own["api_type"])
)
def test_completions_for_other_servers_mean_what_they_say(server: Serving, own: dict[str, Any]) -> None:
    expected = posted(server, "/v1/completions", prompt=PROMPT, **SEEN)["choices"][0]["text"]
    answer = posted(server, "/v1/completions", **SHARED | own)
    assert answer["choices"][0]["text"] == expected != ""


def test_completions_for_llama_cpp(server: Serving) -> None:
    expected = posted(server, "/completion", prompt=PROMPT, **SEEN)["content"]
    body = SHARED | OF_LLAMA_CPP
    assert posted(server, "/completion", **body)["content"] == expected
    without = SEEN | {"repeat_penalty": 1}
    older = posted(server, "/completion", **body | OLDER)["content"]  # this list leaves the penalties out
    assert older == posted(server, "/completion", prompt=PROMPT, **without)["content"]


def test_completions_for_openai_and_ollama(server: Serving) -> None:
    given: dict[str, Any] = {name: SHARED[name] for name in GENERIC}
    few: dict[str, Any] = {name: SEEN[name] for name in GENERIC if name in SEEN}
    text = posted(server, "/v1/completions", **given)["choices"][0]["text"]
    assert text == posted(server, "/v1/completions", prompt=PROMPT, **few)["choices"][0]["text"]
    options = {name: SHARED[name] for name in OLLAMA} | {"tfs_z": 1}
    body: dict[str, Any] = {
        "model": "demo",
        "prompt": PROMPT,
        "stream": False,
        "keep_alive": -1,
        "raw": True,
        "options": options,
    }
    expected = posted(server, "/v1/completions", prompt=PROMPT, **SEEN | {"special": True})["choices"][0]["text"]
    assert posted(server, "/api/generate", **body)["response"] == expected


@pytest.mark.parametrize(
    "active",
    [
        *({"tfs": 0.9}, {"tfs_z": 0.9}, {"top_a": 0.1}, {"mirostat_mode": 2}, {"smoothing_factor": 0.2}, {"skew": 1}),
        *({"epsilon_cutoff": 3}, {"eta_cutoff": 3}, {"dynatemp_range": 0.5}, {"dynamic_temperature": True}),
        *({"rep_pen_slope": 0.5}, {"no_repeat_ngram_size": 3}, {"encoder_repetition_penalty": 1.1}),
        *({"guidance_scale": 1.5}, {"banned_strings": ["a"]}, {"do_sample": False}, {"adaptive_target": 0.5}),
        *({"max_tokens_second": 3}, {"custom_token_bans": "x"}, {"sampler_order": [5, 2]}, {"nsigma": "x"}),
        {"custom_token_bans": "9" * 5000},
    ],
)
def test_a_sampler_that_is_on_and_absent_is_named(server: Serving, active: dict[str, Any]) -> None:
    error = posted(server, "/v1/completions", 400, **SHARED | active)["error"]
    assert error["param"] == next(iter(active))


def test_banned_tokens_are_not_sampled(server: Serving) -> None:
    best: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 1, "n_probs": 1}

    def first(**more: Any) -> int:
        return int(posted(server, "/completion", **best | more)["completion_probabilities"][0]["id"])

    usual = first()
    assert first(custom_token_bans=f"{usual}") == first(custom_token_bans=[usual]) == first(logit_bias=[[usual, False]])
    assert first(custom_token_bans=f"{usual}") != usual
