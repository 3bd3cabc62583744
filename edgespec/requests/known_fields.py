"""The known fields of requests in each format, and how each of them is treated.

A batch and the server read the same tables. The fields are those that OpenAI, Anthropic, Ollama, vLLM and llama.cpp's
server document. A field that would change an answer is read or refused, and never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edgespec.core.sampling import SamplingSettings
from edgespec.core.setting import facts_of
from edgespec.requests import forms
from edgespec.requests.bad_input import BadInputError, JsonObject, UnsupportedError
from edgespec.requests.row_settings import SETTINGS
from edgespec.requests.samplers import ORDERS
from edgespec.settings import shown

MOST_NOTES = 8
MOST_OBJECTS = 100_000  # in a body
EMPTY: tuple[object, ...] = (False, "", [], {})


@dataclass(frozen=True, slots=True)
class Field:
    """The treatment of a field of a request.

    Attributes:
        use: "read": the code reads the field. "harmless": no value of the field changes an answer of this program, or
            no client can rely on it. "only": values that are not in `values` are refused.
        values: The values that ask for nothing.
        inner: The known fields of the object, or of each object in the list, that the field holds.
    """

    use: Literal["read", "harmless", "only"]
    values: tuple[object, ...] = ()
    inner: Mapping[str, Field] | None = None


Known = Mapping[str, Field]
"""The known fields of an object, by name."""


def read(*words: str, **inner: Known) -> dict[str, Field]:
    """Return fields that the code reads; those in `inner` hold objects with known fields.

    In this function and the next ones, words are names of fields with spaces between them.
    """
    return _all(words, Field("read")) | {name: Field("read", inner=known) for name, known in inner.items()}


def harmless(*words: str) -> dict[str, Field]:
    return _all(words, Field("harmless"))


def only(**values: tuple[object, ...]) -> dict[str, Field]:
    return {name: Field("only", allowed) for name, allowed in values.items()}


def refused(*words: str) -> dict[str, Field]:
    """Return fields of which only null and empty values are accepted."""
    return _all(words, Field("only", EMPTY))


def _all(words: Sequence[str], field: Field) -> dict[str, Field]:
    return dict.fromkeys(" ".join(words).split(), field)


def check(body: JsonObject, known: Known) -> list[str]:
    """Return notes about fields without an effect. Null counts as missing. Raises BadInputError."""
    checked = _Check()
    checked.check("", body, known)
    return checked.notes


class _Check:
    """The check of one body: its notes, and how many objects it has looked at."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._n_objects = 0

    def check(self, where: str, given: JsonObject, known: Known) -> None:
        self._n_objects += 1
        if self._n_objects > MOST_OBJECTS:  # a body of a few megabytes would take seconds
            raise BadInputError(f"{where} is one of more than {MOST_OBJECTS:,} objects", where)
        for name, value in given.items():
            if value is not None:
                self._field(where, name, value, known.get(name))

    def _field(self, where: str, name: str, value: object, field: Field | None) -> None:
        if field is None:
            if len(self.notes) < MOST_NOTES:
                self.notes.append(f"unknown field {shown(name_in(where, name))} ignored")
        elif field.use == "only" and value not in field.values:
            at, accepted = name_in(where, name), ""
            if field.values and field.values != EMPTY:
                accepted = f"; only {' or '.join(map(shown, field.values))} is accepted"
            raise UnsupportedError(at, f"{shown(value)} cannot be honoured{accepted}")
        elif field.inner is not None and isinstance(value, Mapping):
            self.check(name_in(where, name), value, field.inner)
        elif field.inner is not None and isinstance(value, list):
            for index, part in enumerate(value):
                if isinstance(part, dict):  # parsed JSON; asking for a Mapping takes five times as long
                    self.check(f"{name_in(where, name)}[{index}]", part, field.inner)


def name_in(where: str, name: str) -> str:
    """Return the name of a field of the object `where`, or of the body."""
    return f"{where}.{name}" if where else name


def read_of(body: JsonObject, known: Known) -> dict[str, object]:
    """Return the fields of a body that are read and not null."""
    return {name: body[name] for name, field in known.items() if field.use == "read" and body.get(name) is not None}


ALIASES = {
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "n_cmpl": "n",
    "repetition_penalty": "repeat_penalty",
    "typ_p": "typical_p",
    # Text front ends
    "typical": "typical_p",
    "nsigma": "top_n_sigma",
    "rep_pen": "repeat_penalty",
    **dict.fromkeys(("rep_pen_range", "repetition_penalty_range"), "repeat_last_n"),
    "sampler_seed": "seed",
    **dict.fromkeys(("max_new_tokens", "num_predict"), "max_tokens"),
    "min_length": "min_tokens",
    "stopping_strings": "stop",
    "ban_eos_token": "ignore_eos",
    "grammar_string": "grammar",
    "stop_sequences": "stop",
    "max_output_tokens": "max_tokens",
    "reasoning_budget_tokens": "reasoning_budget",
    "thinking_budget_tokens": "reasoning_budget",
    "thinking_token_budget": "reasoning_budget",
}
"""Other names of fields, in requests of every format."""

# --- fields of several formats ----------------------------------------------------------------------------------------

STRUCTURED_OUTPUTS: Known = {
    **read("json regex choice grammar json_object"),
    **harmless("disable_fallback"),
    **refused("structural_tag whitespace_pattern disable_any_whitespace disable_additional_properties"),
}
RESPONSE_FORMAT = read("type schema", json_schema={**read("schema"), **harmless("name strict description")})
CONSTRAINING: Known = read(
    "grammar json_schema regex guided_json guided_regex guided_choice guided_grammar",
    response_format=RESPONSE_FORMAT,
    structured_outputs=STRUCTURED_OUTPUTS,
)

# Fields of every format, also in a batch.
GENERATION: Known = {
    **CONSTRAINING,
    **read(*SETTINGS, "repetition_penalty typ_p n_predict"),
    **read("reasoning_budget_tokens thinking_budget_tokens thinking_token_budget"),
    **harmless("model user metadata store service_tier safety_identifier keep_alive"),
    **harmless("prompt_cache_key prompt_cache_retention prompt_cache_options"),
    # The values below matter only with a sampler that is refused unless the sampler is off.
    **only(mirostat=(0,), mirostat_mode=(0,), dynatemp_range=(0,), dynamic_temperature=(False,), min_keep=(0, 1)),
    **only(adaptive_target=(-1, -0.01), tfs=(1,), tfs_z=(1,), top_a=(0,), epsilon_cutoff=(0,), eta_cutoff=(0,)),
    **only(smoothing_factor=(0,), skew=(0,), rep_pen_slope=(0, 1), repetition_decay=(0,), no_repeat_ngram_size=(0,)),
    **only(encoder_repetition_penalty=(1,), penalty_alpha=(0,), guidance_scale=(1,), num_beams=(1,), do_sample=(True,)),
    **only(max_tokens_second=(0,), add_bos_token=(True,), trim_stop=(True,)),
    **refused("banned_strings grammar_retain_state dynatemp_mode dynatemp_low dynatemp_high dynatemp_min dynatemp_max"),
    **read("typical nsigma rep_pen rep_pen_range repetition_penalty_range sampler_seed max_new_tokens num_predict"),
    **read("min_length stopping_strings ban_eos_token grammar_string custom_token_bans", *ORDERS),
    **harmless("smoothing_curve negative_prompt truncation_length num_ctx api_type api_server legacy_api"),
    **harmless("speculative_ngram"),
    **harmless("t_max_prompt_ms"),  # llama.cpp's server documents it, and ignores it too
    **harmless("id_slot"),  # which slot an answer has does not change it
    **harmless("mirostat_tau mirostat_eta dynatemp_exponent adaptive_decay backend_sampling"),
    # llama.cpp's server. n_keep and n_discard are for its context shift, which does not exist here.
    **only(n_keep=(0, -1), n_discard=(0,), parse_tool_calls=(True,), prefill_assistant=(True,)),
    **only(t_max_predict_ms=(-1, 0)),  # in a batch, texts do not depend on the time
    **read(lora=read("id scale")),
    **refused("image_data multimodal_data grammar_lazy grammar_triggers grammar_type preserved_tokens chat_format"),
    **refused("post_sampling_probs response_fields reasoning_in_content thinking_forced_open generation_prompt"),
    **refused("chat_parser"),
    **harmless("reasoning_budget_start_tag reasoning_budget_end_tag reasoning_budget_end_tags reasoning_control"),
    **refused("reasoning_budget_message"),
    **harmless("n_cache_reuse timings_per_token sse_ping_interval verbose"),
    **harmless("speculative.n_max speculative.n_min speculative.p_min speculative.type"),
    # vLLM
    **only(skip_special_tokens=(True,), length_penalty=(1, 0), include_reasoning=(True,), detokenize=(True,)),
    **only(routed_experts_prompt_start=(0,)),
    # Even an empty value of these asks for something.
    **only(prompt_logprobs=(), truncate_prompt_tokens=(), logprob_token_ids=()),
    **refused("use_beam_search include_stop_str_in_output early_stopping allowed_token_ids logits_processors"),
    **refused("return_tokens_as_token_ids return_token_ids kv_transfer_params guided_whitespace_pattern vllm_xargs"),
    **refused("guided_structural_tag documents draft_model watermarking return_prompt_text ec_transfer_params"),
    **refused("repetition_detection"),
    **harmless("spaces_between_special_tokens guided_decoding_backend priority request_id cache_salt session_id"),
    **harmless("mm_processor_kwargs media_io_kwargs return_mm_kwargs truncation_side return_token_offsets"),
    **harmless("stream_interval"),
}
STREAM_OPTIONS: Known = {
    **read(*facts_of(forms.StreamOptions)),
    **harmless("include_obfuscation"),
    **refused("continuous_usage_stats"),
}
# Fields that only the server has.
SERVED: Known = {
    **read(*facts_of(forms.AnswerFields), *forms.SERVER_SETTINGS),
    **read(stream_options=STREAM_OPTIONS),
}

# --- OpenAI's Chat Completions ----------------------------------------------------------------------------------------

PART: Known = {
    **read("type text refusal", image_url={**read("url"), **harmless("detail")}),  # projectors decide about details
    **harmless("annotations logprobs cache_control prompt_cache_breakpoint detail"),
    **refused("file_id"),
}
FILE: Known = read("filename file_data file_id")
FUNCTION_CALL: Known = {
    **read("id type", function={**read("name arguments"), **harmless("parsed_arguments")}, custom=read("name input")),
    **harmless("index"),
}
MESSAGE: Known = {
    **read("role name refusal tool_call_id reasoning_content reasoning tokens"),
    **read(content={**PART, **read(file=FILE)}, tool_calls=FUNCTION_CALL),
    # The assistant's message at the end is continued, as `prefix` and `partial` ask elsewhere.
    **harmless("annotations parsed cache_control prefix partial"),
    **refused("audio function_call"),
}
FUNCTION: Known = {**read("name description parameters"), **harmless("strict")}  # all calls fit their schemas
FORMAT: Known = {**harmless("type"), **read("syntax definition", grammar=read("syntax definition"))}
TOOL: Known = {
    **read("type", function=FUNCTION, custom=read("name description", format=FORMAT)),
    **harmless("cache_control defer_loading"),  # all tools are in the prompt
}
TOOL_CHOICE: Known = read("type", function=read("name"), custom=read("name"), allowed_tools=read("mode tools"))
OPENAI_CHAT: Known = {
    **GENERATION,
    **read("max_completion_tokens n n_cmpl best_of logprobs top_logprobs add_system_prompt", messages=MESSAGE),
    **harmless("prediction add_special_tokens"),  # the template has the BOS, and no prompt has two of them
    **only(modalities=(["text"],)),
    **only(web_search_options=()),  # even {} asks for a search
    **refused("audio moderation chat_template echo"),
}
CHAT: Known = {
    **OPENAI_CHAT,
    **SERVED,
    **read("parallel_tool_calls prompt_logprobs", *facts_of(forms.ChatFields), tools=TOOL, tool_choice=TOOL_CHOICE),
    **refused("functions"),
    **only(function_call=("none", "auto")),
    **read("reasoning_effort chat_template_kwargs enable_thinking"),
}
BATCH_CHAT: Known = {
    **OPENAI_CHAT,
    **read("stream"),
    **refused("tools functions"),
    **only(tool_choice=("none", "auto"), function_call=("none", "auto"), verbosity=("medium",)),
    **harmless("stream_options parallel_tool_calls return_progress"),
}

# --- OpenAI's Completions ---------------------------------------------------------------------------------------------

OPENAI_TEXT: Known = {
    **GENERATION,
    **read("prompt n n_cmpl best_of logprobs"),
    **refused("echo suffix"),
    **only(add_special_tokens=(True,)),
}
TEXT: Known = {
    **OPENAI_TEXT,
    **SERVED,
    **read("prompt_logprobs", *facts_of(forms.TextFields)),
    **harmless("lenient"),  # edgespec's clients send it with every request; it is about messages
}
BATCH_TEXT: Known = {**OPENAI_TEXT, **read("stream"), **harmless("stream_options return_progress")}

# --- Messages and Responses -------------------------------------------------------------------------------------------

# Both are read as chats, with other names for these fields.
_OTHERS_NAMES = ("stop", "response_format")
_OF_A_CHAT: Known = {
    **{name: field for name, field in {**GENERATION, **SERVED}.items() if name not in _OTHERS_NAMES},
    **read("reasoning_effort chat_template_kwargs enable_thinking reasoning_format lenient add_system_prompt"),
    **refused("echo n_probs"),
    **only(n=(1,), n_cmpl=(1,), best_of=(1,)),
}
_REFUSED = {**refused("logprobs response_format messages functions function_call")}
JSON_FORMAT: Known = {**read("type schema"), **harmless("name strict description")}

# --- Anthropic's Messages ---------------------------------------------------------------------------------------------

TEXT_BLOCK: Known = {**read("type text"), **harmless("cache_control citations")}
SOURCE_BLOCK: Known = {
    **TEXT_BLOCK,
    **read("title context citations", source=read("type media_type data content url file_id")),
}
BLOCK: Known = {
    **SOURCE_BLOCK,
    **read("thinking id name input tool_use_id is_error", content={**SOURCE_BLOCK, **read("tool_name")}),
    **harmless("signature data caller"),  # parts of earlier answers that clients send back unchanged
    **refused("toolset_name"),
}
MESSAGE_TOOL: Known = {
    **read("type name description input_schema eager_input_streaming"),
    **harmless("strict cache_control"),
    **only(allowed_callers=(["direct"],)),
    **harmless("defer_loading"),
    **refused("input_examples"),
}
MESSAGES: Known = {
    **_OF_A_CHAT,
    **_REFUSED,
    **read("max_tokens stop_sequences stop"),
    **read(system=TEXT_BLOCK, messages={**read("role", content=BLOCK)}, tools=MESSAGE_TOOL),
    **read(tool_choice=read("type name disable_parallel_tool_use")),
    **read(thinking={**read("display", *facts_of(forms.Thinking)), **harmless("block_binding")}),
    **read(output_config={**read("effort", format=JSON_FORMAT), **refused("task_budget")}),
    **refused("top_logprobs parallel_tool_calls mcp_servers container thread output_format"),
    # These fields shorten long conversations. This server does not: a conversation that is too long is an error.
    **harmless("context_management compaction"),
    **harmless("betas cache_control inference_geo speed diagnostics user_profile_id workspace_id"),
    **harmless("billing_policy fallbacks fallback_credit_token"),
}

# --- OpenAI's Responses -----------------------------------------------------------------------------------------------

ITEM_PART: Known = {**PART, **FILE, **read("file_url"), **harmless("detail")}
ITEM: Known = {
    **read("type role call_id name namespace arguments input action operation error summary"),
    **read(content=ITEM_PART, output=ITEM_PART),
    **harmless("id status phase caller encrypted_content server_label max_output_length"),
    **refused("async"),
}
RESPONSE_FUNCTION: Known = {
    **read("type name description parameters", format=FORMAT),
    **harmless("strict"),
    **only(allowed_callers=(["direct"],)),
    **refused("async"),
    **harmless("output_schema defer_loading"),
}
RESPONSE_TOOL: Known = {
    **RESPONSE_FUNCTION,
    **read(tools=RESPONSE_FUNCTION),
    **harmless("external_web_access search_context_size search_content_types user_location filters container"),
    **harmless("vector_store_ids max_num_results ranking_options server_label server_url server_description headers"),
    **harmless("require_approval allowed_tools connector_id authorization environment execution display_width"),
    **harmless("display_height quality size model output_format background"),  # of tools that are left out
}
REASONING: Known = {
    **read("effort"),
    **harmless("summary generate_summary"),  # all of the reasoning is sent
    **only(mode=("standard",), context=("auto",)),
}
RESPONSES: Known = {
    **_OF_A_CHAT,
    **_REFUSED,
    **read("max_tokens max_output_tokens instructions stop parallel_tool_calls include"),
    **read(input=ITEM, tools=RESPONSE_TOOL, tool_choice=read("type name namespace mode tools")),
    **read(text=read("verbosity", format=JSON_FORMAT)),
    **read(reasoning=REASONING),
    **refused("previous_response_id conversation background prompt moderation image"),
    **only(top_logprobs=(0,)),
    # In this server, a conversation that is too long is an error, and so is a tool that the server would have to call.
    **harmless("context_management truncation max_tool_calls client_metadata access_programs background_options"),
}

# --- Ollama -----------------------------------------------------------------------------------------------------------

# Ollama has some of these; the others are edgespec's.
OLLAMA_SAMPLING: Known = read(
    *(name for name in facts_of(SamplingSettings) if name != "logit_bias"),
    "seed stop spec_type pace draft_n_max repeat_limit",
)
OLLAMA_OPTIONS: Known = {
    **OLLAMA_SAMPLING,
    **read("num_predict"),
    # Settings of loading, which do not change an answer that fits.
    **harmless("num_ctx num_batch num_gpu main_gpu num_thread numa low_vram f16_kv use_mmap use_mlock logits_all"),
    **harmless("vocab_only embedding_only"),
    # Ollama ignores penalize_newline, and the others belong to samplers and a context shift that do not exist here.
    **harmless("penalize_newline mirostat_tau mirostat_eta num_keep"),
    **only(mirostat=(0,), tfs_z=(1,)),
}
_OLLAMA: Known = {
    **read("stream format think logprobs top_logprobs", options=OLLAMA_OPTIONS),
    **read("add_system_prompt"),  # which Ollama does not have
    **harmless("model keep_alive"),  # `serve --idle-unload` decides; it is read only if there is no prompt
    # A conversation that does not fit is an error here.
    **harmless("truncate shift"),
    **refused("_debug_render_only"),
}
OLLAMA_MESSAGE: Known = read("role content thinking images tool_name name tool_call_id tool_calls")
OLLAMA_CHAT: Known = {**_OLLAMA, **read(tools=TOOL, messages=OLLAMA_MESSAGE)}
OLLAMA_GENERATE: Known = {
    **_OLLAMA,
    **read("images", *facts_of(forms.GenerateFields)),
    **refused("template context width height steps"),
}
OLLAMA_SHOW: Known = {**read("model name"), **harmless("verbose system template options")}

# --- llama.cpp's other endpoints --------------------------------------------------------------------------------------

COMPLETION: Known = {
    **TEXT,
    **read("response_fields"),
    **harmless("n_keep n_discard"),  # of the context shift, which does not exist here
    **only(prompt_logprobs=()),
    **refused("system_prompt input_prefix input_suffix input_extra"),
}
INFILL: Known = {
    **COMPLETION,
    **read(*facts_of(forms.InfillFields), input_extra={**read("filename text"), **harmless("time")}),
    **refused("echo suffix"),
}
TOKENIZE: Known = read("model", *facts_of(forms.TokenizeFields))
DETOKENIZE: Known = read("model tokens with_pieces")
APPLY_TEMPLATE: Known = {**CHAT, **read("count")}

# --- vectors and scores of texts --------------------------------------------------------------------------------------

_OF_TEXTS: Known = {
    **harmless("model user priority request_id cache_salt mm_processor_kwargs"),
    # Fields of vLLM, Jina, Cohere and Voyage, which change what a model reads.
    **refused(
        "task input_type prompt_name instruction late_chunking messages chat_template image_data multimodal_data"
    ),
    **refused("images truncation lora"),
    **only(truncate=(False, "NONE"), truncate_prompt_tokens=(), add_special_tokens=(True,)),
}
EMBEDDINGS: Known = {
    **_OF_TEXTS,
    **read("input encoding_format dimensions"),
    **only(embd_normalize=(2,), normalize=(True,), normalized=(True,), embed_dtype=("float32",)),
    **only(endianness=("native", "little"), embedding_type=("float",), output_dtype=("float",)),
    **refused("content output_dimension use_activation"),
}
EMBEDDING: Known = {**EMBEDDINGS, **read("content"), **only(encoding_format=("float",))}  # of llama.cpp's server
RERANK: Known = {
    **_OF_TEXTS,
    **read("top_n texts", *facts_of(forms.RerankFields), documents=read("text")),
    **only(max_tokens_per_doc=(), max_chunks_per_doc=(), raw_scores=(True,), use_activation=(False,)),
    **refused("rank_fields top_k"),
}
_OLLAMA_TEXTS: Known = {
    **harmless("model keep_alive"),
    "options": Field("harmless", inner=dict.fromkeys(OLLAMA_OPTIONS, Field("harmless"))),  # sampling changes no vector
}
OLLAMA_EMBED: Known = {**_OLLAMA_TEXTS, **read("input truncate dimensions")}
OLLAMA_EMBEDDINGS: Known = {**_OLLAMA_TEXTS, **read("prompt")}
