"""The known fields of Messages, Responses and llama.cpp's endpoints, and how each of them is treated.

`edgespec.batch.known` has the tables of OpenAI's Chat Completions and Completions, and explains the treatments.
"""

from __future__ import annotations

from edgespec.batch.known import CHAT, GENERATION, PART, SERVED, TEXT, Known, harmless, hint, only, read, refused

# Messages and Responses are read as chats, with other names for these fields.
_OTHERS_NAMES = ("stop", "response_format")
_OF_A_CHAT: Known = {
    **{name: field for name, field in {**GENERATION, **SERVED}.items() if name not in _OTHERS_NAMES},
    **read("reasoning_effort chat_template_kwargs enable_thinking reasoning_format lenient"),
    **refused("echo n_probs"),
    **only(n=(1,), n_cmpl=(1,), best_of=(1,)),
}
_REFUSED = {**refused("logprobs response_format messages functions function_call")}
JSON_FORMAT: Known = {**read("type schema"), **harmless("name strict description")}

# --- Anthropic's Messages ---------------------------------------------------------------------------------------------

TEXT_BLOCK: Known = {**read("type text"), **harmless("cache_control citations")}
BLOCK: Known = {
    **TEXT_BLOCK,
    **read("thinking id name input tool_use_id is_error", content=TEXT_BLOCK),
    **harmless("signature data caller"),  # parts of earlier answers that clients send back unchanged
    **refused("toolset_name"),
}
MESSAGE_TOOL: Known = {
    **read("type name description input_schema strict"),
    **harmless("cache_control eager_input_streaming"),
    **only(allowed_callers=(["direct"],)),
    **refused("defer_loading input_examples"),
}
MESSAGES: Known = {
    **_OF_A_CHAT,
    **_REFUSED,
    **read("max_tokens stop_sequences stop"),
    **read(system=TEXT_BLOCK, messages={**read("role", content=BLOCK)}, tools=MESSAGE_TOOL),
    **read(tool_choice=read("type name disable_parallel_tool_use")),
    **read(thinking={**read("type display"), **hint("budget_tokens block_binding")}),
    **read(output_config={**read("effort", format=JSON_FORMAT), **refused("task_budget")}, output_format=JSON_FORMAT),
    **refused("top_logprobs parallel_tool_calls mcp_servers container thread"),
    # These fields shorten long conversations. This server does not: a conversation that is too long is an error.
    **hint("context_management compaction"),
    **harmless("betas cache_control inference_geo speed diagnostics user_profile_id workspace_id"),
    **harmless("billing_policy fallbacks fallback_credit_token"),
}

# --- OpenAI's Responses -----------------------------------------------------------------------------------------------

ITEM: Known = {
    **read("type role call_id name arguments", content=PART, output=PART),
    **harmless("id status phase caller summary encrypted_content"),
    **refused("namespace async"),
}
RESPONSE_TOOL: Known = {
    **read("type name description parameters strict"),
    **only(allowed_callers=(["direct"],)),
    **refused("defer_loading async"),
    **hint("output_schema"),
}
REASONING: Known = {
    **read("effort"),
    **harmless("summary generate_summary"),  # all of the reasoning is sent
    **only(mode=("standard",), context=("auto",)),
}
RESPONSES: Known = {
    **_OF_A_CHAT,
    **_REFUSED,
    **read("max_tokens max_output_tokens instructions stop parallel_tool_calls top_logprobs include"),
    **read(input=ITEM, tools=RESPONSE_TOOL, tool_choice={**read("type name"), **refused("mode tools")}),
    **read(text={**read(format=JSON_FORMAT), **only(verbosity=("medium",))}),
    **read(reasoning=REASONING),
    **refused("previous_response_id conversation background prompt moderation image"),
    # In this server, a conversation that is too long is an error, and so is a tool that the server would have to call.
    **hint("context_management"),
    **harmless("truncation max_tool_calls client_metadata access_programs background_options"),
}

# --- llama.cpp's other endpoints --------------------------------------------------------------------------------------

# `samplers` may name samplers that do not exist here, since the settings that would switch them on are refused.
COMPLETION: Known = {
    **TEXT,
    **read("samplers"),
    **harmless("n_keep n_discard"),  # of the context shift, which does not exist here
    **refused("system_prompt input_prefix input_suffix input_extra"),
}
TOKENIZE: Known = read("model content prompt add_special parse_special with_pieces")
DETOKENIZE: Known = read("model tokens with_pieces")
APPLY_TEMPLATE: Known = {**CHAT, **read("count")}
