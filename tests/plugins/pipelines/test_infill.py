"""Fill in the middle: the tokens of a vocabulary, and the prompts that they make."""

from __future__ import annotations

import pytest
import tokenizers
from echo.model import make_tokenizer, served_echo

from ostro.core.errors import Unsupported
from ostro.core.pipeline import parse_request
from ostro.core.tokenizer import Tokenizer
from ostro.entrypoints.api.openai.bodies import CompletionBody
from ostro.plugins.pipelines.text.infill import NAMES, SUFFIX_FIRST, InfillTokens
from ostro.plugins.pipelines.text.prepare import Preparer


def tokenizer_with(*names: str, **roles: str) -> Tokenizer:
    """A tokenizer of bytes with further control tokens, from id 258 on."""
    backend = make_tokenizer()
    backend.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in names])
    return Tokenizer(backend, special_tokens=roles)


@pytest.mark.parametrize("names", NAMES)
def test_known_names(names: tuple[str, str, str]) -> None:
    found = InfillTokens.find(tokenizer_with(*names))
    assert found.prompt([1], [2]) == [258, 1, 259, 2, 260]
    assert {258, 259, 260} <= {*found.ends}


def test_the_suffix_may_precede_the_prefix() -> None:
    assert InfillTokens.find(tokenizer_with(*SUFFIX_FIRST)).prompt([1], [2]) == [259, 2, 258, 1]


def test_roles_of_gguf_metadata_come_first() -> None:
    roles = {"fim_pre_token": "<a>", "fim_suf_token": "<b>", "fim_mid_token": "<c>"}
    found = InfillTokens.find(tokenizer_with(*NAMES[0], "<a>", "<b>", "<c>", **roles))
    assert (found.prefix, found.suffix, found.middle) == (261, 262, 263)


def test_two_of_three_names_are_not_enough() -> None:
    with pytest.raises(Unsupported, match="fill in the middle"):
        InfillTokens.find(tokenizer_with("<fim_prefix>", "<fim_suffix>"))


def preparer_of(tokenizer: Tokenizer) -> Preparer:
    return Preparer(served_echo(tokenizer, context=100, vocab=300, template=None))


def test_control_tokens_around_the_middle_are_text_unless_requested() -> None:
    preparer = preparer_of(tokenizer_with(*NAMES[0]))
    middle = NAMES[0][2]
    for fields, tokens in (({}, middle.encode()), ({"parse_special": True}, [260])):
        body = parse_request({"prompt": f"a{middle}", "suffix": "b", **fields}, CompletionBody)
        request = body.to_request()
        (one,) = preparer.prepare_completion(request, default_max_tokens=16)
        assert one.request.tokens == [258, 97, *tokens, 259, 98, 260]


def test_a_prompt_with_a_suffix() -> None:
    preparer = preparer_of(tokenizer_with(*NAMES[0], "<|endoftext|>"))
    for prompt in ("ab", [97, 98]):
        request = parse_request({"prompt": prompt, "suffix": "c"}, CompletionBody).to_request()
        (one,) = preparer.prepare_completion(request, default_max_tokens=16)
        assert one.request.tokens == [258, 97, 98, 259, 99, 260]
        assert 261 in one.request.sampling.stop_ids and one.request.sampling.max_tokens == 16
