"""Writes docs/peer-fields.md: python tests/entrypoints/http/peer_fields.py.

The fields that the clients of other servers send to /v1/chat/completions, and what becomes of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ostro.entrypoints.api.openai.bodies import ChatBody

PAGE = Path(__file__).resolve().parents[3] / "docs" / "peer-fields.md"
SCHEMA = {"type": "object"}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "vLLM": {
        "add_generation_prompt": True,
        "add_special_tokens": False,
        "allowed_token_ids": [1],
        "bad_words": ["a"],
        "best_of": 1,
        "cache_salt": "a",
        "chat_template": "a",
        "chat_template_kwargs": {},
        "continue_final_message": False,
        "documents": [{"title": "a", "text": "b"}],
        "echo": False,
        "guided_choice": ["a", "b"],
        "guided_decoding_backend": "xgrammar",
        "guided_grammar": 'start: "a"',
        "guided_json": SCHEMA,
        "guided_regex": "a",
        "guided_whitespace_pattern": "a",
        "ignore_eos": False,
        "include_reasoning": True,
        "include_stop_str_in_output": True,
        "kv_transfer_params": {},
        "length_penalty": 1.0,
        "logits_processors": {},
        "media_io_kwargs": {},
        "min_p": 0.1,
        "min_tokens": 1,
        "mm_processor_kwargs": {},
        "priority": 0,
        "prompt_logprobs": 1,
        "repetition_detection": {},
        "repetition_penalty": 1.1,
        "request_id": "a",
        "return_token_ids": False,
        "return_tokens_as_token_ids": False,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "stop_token_ids": [1],
        "structural_tag": "a",
        "structured_outputs": {"regex": "a"},
        "thinking_token_budget": 5,
        "top_k": 5,
        "truncate_prompt_tokens": 5,
        "use_beam_search": False,
        "vllm_xargs": {},
    },
    "llama.cpp": {
        "backend_sampling": False,
        "cache_prompt": True,
        "dry_allowed_length": 2,
        "dry_base": 1.75,
        "dry_multiplier": 0.0,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["a"],
        "dynatemp_exponent": 1.0,
        "dynatemp_range": 0.0,
        "enable_thinking": False,
        "grammar": 'root ::= "a"',
        "id_slot": -1,
        "json_schema": SCHEMA,
        "lora": [{"id": 0, "scale": 1.0}],
        "min_keep": 0,
        "mirostat": 0,
        "mirostat_eta": 0.1,
        "mirostat_tau": 5.0,
        "n_cache_reuse": 0,
        "n_discard": 0,
        "n_indent": 0,
        "n_keep": 0,
        "n_predict": 5,
        "n_probs": 1,
        "parse_tool_calls": True,
        "post_sampling_probs": False,
        "reasoning_format": "auto",
        "repeat_last_n": 64,
        "repeat_penalty": 1.1,
        "response_fields": [],
        "return_progress": False,
        "return_tokens": False,
        "samplers": ["top_k"],
        "t_max_predict_ms": 0,
        "thinking_budget_tokens": 5,
        "timings_per_token": True,
        "top_n_sigma": -1.0,
        "typical_p": 1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
    },
    "SGLang": {
        "bootstrap_host": "a",
        "bootstrap_port": 1,
        "bootstrap_room": 1,
        "custom_logit_processor": "a",
        "custom_params": {},
        "data_parallel_rank": 0,
        "ebnf": "a",
        "extra_key": "a",
        "lora_path": "a",
        "no_stop_trim": True,
        "regex": "a",
        "return_cached_tokens_details": False,
        "return_hidden_states": False,
        "return_routed_experts": False,
        "rid": "a",
        "separate_reasoning": True,
        "session_params": {},
        "stop_regex": "a",
        "stream_reasoning": True,
    },
    "Ollama": {
        "format": "json",
        "keep_alive": "5m",
        "num_ctx": 4096,
        "num_predict": 5,
        "options": {"num_ctx": 4096},
        "raw": False,
        "template": "a",
        "tfs_z": 1.0,
        "think": False,
        "truncate": True,
    },
    "LM Studio": {"draft_model": "a", "preset": "a", "ttl": 300},
    "LoRAX": {
        "adapter_id": "a",
        "adapter_parameters": {},
        "adapter_source": "hub",
        "api_token": "a",
        "details": True,
        "do_sample": True,
        "return_full_text": False,
        "watermark": False,
    },
    "mistral.rs": {
        "adapters": [],
        "reasoning_effort": "none",
        "truncate_sequence": False,
    },
    "OpenRouter": {
        "models": ["a"],
        "plugins": [{"id": "web"}],
        "provider": {"order": ["a"]},
        "reasoning": {"enabled": False},
        "route": "fallback",
        "session_id": "a",
        "top_a": 0.1,
        "trace": {},
        "transforms": ["middle-out"],
        "usage": {"include": True},
    },
}
"""The fields beyond those of OpenAI's chats by the server that introduced them, with a value."""
HEAD = """\
# Fields of other servers

What becomes of the fields that clients of other servers send to `POST /v1/chat/completions`, beyond
those of OpenAI's API. [`http-api.md`](http-api.md) lists the fields of all routes.

- *honoured*: it has the effect that it has there.
- *accepted*: it changes nothing here, for the reason that is given. A value that would change
  something has status 400.
- *rejected*: status 400 and the name of the field, since the answer would be another one.
- *ignored*: the answer is the same as without it, and the header `x-ostro-ignored` names it. With
  `--strict-fields` it has status 400, as a misspelled name has.

`tests/entrypoints/http/test_peer_fields.py` sends each of them. Ollama's options on its own routes
are in [`ollama.md`](ollama.md#options).
"""


def class_of(name: str) -> str:
    """What becomes of a field: honoured, accepted, rejected or ignored."""
    if name in ChatBody.unsupported:
        return "rejected"
    if name in ChatBody.accepted:
        return "accepted"
    return "honoured" if name in ChatBody.__struct_fields__ else "ignored"


def page() -> str:
    """The text of the page."""
    return "\n".join([HEAD, *lines()])


def lines() -> Iterator[str]:
    """The tables of the servers."""
    for server, fields in FIELDS.items():
        yield from (f"## {server}\n", "| field | class | |", "|---|---|---|")
        for name in sorted(fields):
            reason = ChatBody.unsupported.get(name) or ChatBody.accepted.get(name, "")
            yield f"| `{name}` | {class_of(name)} | {reason} |"
        yield ""


if __name__ == "__main__":
    PAGE.write_text(page().rstrip() + "\n")
