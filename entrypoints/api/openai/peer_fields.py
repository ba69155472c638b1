"""Fields of other servers on OpenAI's routes for text, beyond those of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping

from ostro.entrypoints.operations.requests.model_body import ModelBody

REJECTED: Mapping[str, str] = {
    "adapter_id": "an adapter under LoRAX's name; use adapter",
    "adapter_parameters": "a mixture of adapters under LoRAX's name; use adapters",
    "adapter_source": "the source of an adapter; serve it, or load it at /v1/load_lora_adapter",
    "allowed_token_ids": "a list of allowed tokens; use logit_bias or structured_outputs",
    "bad_words": "a list of forbidden words; use logit_bias",
    "chat_template": "a chat template in a request; serve the model with --chat-template",
    "custom_logit_processor": "a logits processor in a request; install it as a plugin",
    "custom_params": "parameters of a logits processor in a request; use logits_processors",
    "ebnf": "a grammar under SGLang's name; use guided_grammar",
    "guided_whitespace_pattern": "the white space of JSON; use guided_grammar",
    "kv_transfer_params": "a cache of another server",
    "lora": "adapters under llama.cpp's name; use adapters",
    "lora_path": "an adapter under SGLang's name; use adapter",
    "mm_processor_kwargs": "a setting of the processor of media",
    "n_probs": "log probabilities under llama.cpp's name; use logprobs",
    "stop_regex": "a regular expression as a stop; use stop, or constrain the answer with regex",
    "structural_tag": "a tag under vLLM's older name; use response_format",
    "truncate_prompt_tokens": "truncation of a prompt; shorten it",
}
"""Fields of other servers that would change the output, with their features."""

EXTENSIONS = ModelBody.extensions | frozenset(
    "top_k min_p typical_p repetition_penalty dry_multiplier dry_base dry_allowed_length "
    "dry_penalty_last_n dry_sequence_breakers min_tokens max_total_tokens ignore_eos "
    "stop_token_ids include_stop_str_in_output cache_salt priority speculate prompt_logprobs "
    "chat_template_kwargs add_generation_prompt continue_final_message thinking_budget "
    "thinking_token_budget thinking_budget_tokens processors "
    "logits_processors response_format grammar json_schema guided_json guided_regex guided_choice "
    "guided_grammar structured_outputs regex repeat_penalty n_predict skip_special_tokens "
    "spaces_between_special_tokens return_tokens_as_token_ids cache_prompt id_slot "
    "timings_per_token request_id rid think enable_thinking reasoning include_reasoning "
    "separate_reasoning stream_reasoning add_special_tokens guided_decoding_backend "
    "length_penalty no_stop_trim return_hidden_states return_token_ids use_beam_search".split()
)
"""Fields that OpenAI's API lacks."""
ACCEPTED: Mapping[str, str] = {
    "cache_prompt": "the prefix cache has every prompt",
    "guided_decoding_backend": "there is one backend of grammars",
    "id_slot": "the scheduler assigns the slots",
    "length_penalty": "only beam search reads it",
    "request_id": "the header x-request-id states the id of a request",
    "return_hidden_states": "responses have no hidden states",
    "return_token_ids": "responses have no token ids; /tokenize states them",
    "return_tokens_as_token_ids": "log probabilities name tokens by their text",
    "rid": "the header x-request-id states the id of a request",
    "skip_special_tokens": "text has no control tokens",
    "spaces_between_special_tokens": "text has no control tokens",
    "timings_per_token": "usage and metrics have the times",
    "use_beam_search": "tokens are drawn, without beams",
}
"""Fields of other servers that change nothing here, and why."""
