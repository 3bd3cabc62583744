"""The known fields of requests for vectors and scores of texts, as `known_fields.py` has those of answers."""

from __future__ import annotations

from edgespec.requests.known_fields import OLLAMA_OPTIONS, Field, Known, harmless, only, read, refused

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
    **read("query top_n return_documents texts return_text", documents=read("text")),
    **only(max_tokens_per_doc=(), max_chunks_per_doc=(), raw_scores=(True,), use_activation=(False,)),
    **refused("rank_fields top_k"),
}
_OLLAMA_TEXTS: Known = {
    **harmless("model keep_alive"),
    "options": Field("harmless", inner=dict.fromkeys(OLLAMA_OPTIONS, Field("harmless"))),  # sampling changes no vector
}
OLLAMA_EMBED: Known = {**_OLLAMA_TEXTS, **read("input truncate dimensions")}
OLLAMA_EMBEDDINGS: Known = {**_OLLAMA_TEXTS, **read("prompt")}
