"""Train the tokenizer: byte-level BPE with one token per digit, and a chat template."""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 3072
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# One token each, but not special: parsers need them in the text of replies.
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]

# Words include the preceding space; each digit is a token, so that columns of numbers line up.
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
  {%- if content is string -%}{{ content }}
  {%- elif content -%}{%- for part in content -%}{{ part.text }}{%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(system='', last_user=-1) -%}
{%- for message in messages -%}
  {%- if loop.first and message.role == 'system' -%}{%- set ns.system = text(message.content) -%}
  {%- endif -%}
  {%- if message.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- set thinks = enable_thinking is defined and enable_thinking is true -%}
{%- set blank_thought = enable_thinking is defined and enable_thinking is false -%}
{%- if ns.system or tools or thinks -%}
  {{- '<|im_start|>system\\n' + ns.system -}}
  {%- if tools -%}
    {{- '\\n# Tools' -}}
    {%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
    {{- '\\nCall: <tool_call>{"name": ..., "arguments": {...}}</tool_call>' -}}
  {%- endif -%}
  {%- if thinks -%}{{- '\\nThink first.' -}}{%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if not (loop.first and message.role == 'system') -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.role == 'assistant' -%}
      {%- set content = text(message.content) -%}
      {%- set reasoning = message.reasoning_content or '' -%}
      {%- if '</think>' in content -%}
        {%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip() -%}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
      {%- endif -%}
      {%- if loop.index0 > ns.last_user and (reasoning or blank_thought) -%}
        {{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' -}}
      {%- endif -%}
      {{- content -}}
      {%- for call in message.tool_calls or [] -%}
        {%- set call = call.function or call -%}
        {%- set arguments = call.arguments -%}
        {{- '<tool_call>{"name": ' + (call.name | tojson) + ', "arguments": ' -}}
        {{- arguments if arguments is string else (arguments | tojson) -}}
        {{- '}</tool_call>' -}}
      {%- endfor -%}
    {%- else -%}
      {{- text(message.content) -}}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
  {%- if blank_thought -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with `VOCAB_SIZE` tokens, trained on `texts`, with the chat template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(MARKS),
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
