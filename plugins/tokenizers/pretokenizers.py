r"""Pre-tokenizers of GGUF's byte-level vocabularies: the words within which BPE merges.

`tokenizer.ggml.pre` is the name of a rule. Names and rules are those of llama.cpp
(src/llama-vocab.cpp, 2026); where it adapts an expression to its own engine, the expression of the
model's tokenizer.json is used instead. Expressions apply in order, each to the pieces of the
previous one: matches and the text between matches are separate pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ostro.errors import TokenizerError, nearest


@dataclass(frozen=True, kw_only=True)
class PreTokenizer:
    """A pre-tokenizer.

    ignore_merges: a word that is in the vocabulary is not split. bos: a prompt begins
    with bos if the file does not state it. byte_level: False for a vocabulary in UTF-8 with
    <0xXX> tokens and U+2581 for spaces.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    bos: bool = False
    byte_level: bool = True


CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
CJK = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
HAN_OR_HANGUL = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
LINES = r"[^\n]+|[\n]+"
SENTENCE_MARKS = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


def _tiktoken(digits: str, spaces: str = SPACES, contraction: str = CONTRACTION + "|") -> str:
    """The expression of cl100k and its variants, which differ in the digits of a word."""
    word = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return rf"{contraction}{word}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{spaces}"


def _cased(digits: str, contraction: str = "", without: str = "", marks: str = r"[\r\n/]*") -> str:
    """The expression of o200k and its variants, which split words at capitals."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    words = f"{lead}{upper}*{lower}+{contraction}|{lead}{upper}+{lower}*{contraction}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{marks}|{SPACES}"


THREE = _tiktoken(r"\p{N}{1,3}")
ONE = _tiktoken(r"\p{N}")
DEEPSEEK3 = (
    rf"{PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
SPARK = (
    rf"{PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
)
HALVINGS = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))

# The cased characters of Unicode, listed as in the model's file.
DEEPSEEK_LETTERS = (
    r"[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    r"\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-"
    r"\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-"
    r"\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-"
    r"\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc"
    r"\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-"
    r"\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    r"\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    r"\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-"
    r"\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-"
    r"\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-"
    r"\U000118df\U0001e900-\U0001e943]+"
)
DEEPSEEK_MARKS = r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
YOUTU_MARKS = (
    r"[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    r"\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + CJK
)

RULES: dict[str, PreTokenizer] = {
    (
        "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe "
        "gigachat a.x-4.0 mellum modern-bert mpt olmo jais trillion granite-docling exaone4"
    ): PreTokenizer(patterns=(GPT2,)),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": PreTokenizer(
        patterns=(r"\p{N}", GPT2)
    ),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": PreTokenizer(
        patterns=(THREE,), ignore_merges=True, bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe glm4": PreTokenizer(patterns=(THREE,)),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": PreTokenizer(
        patterns=(ONE,)
    ),
    "qwen35": PreTokenizer(
        patterns=(
            rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}",
        )
    ),
    "jais-2": PreTokenizer(patterns=(_tiktoken(r"\p{N}{1,3}", rf"\s*[\r\n]+|{HALVINGS}|\s{{1}}"),)),
    "minicpm5": PreTokenizer(patterns=(r"\p{N}{1,3}", _tiktoken(r"\p{N}+")), ignore_merges=True),
    "laguna": PreTokenizer(patterns=(LINES, ONE)),
    "ufakzeka": PreTokenizer(patterns=(_tiktoken(r"\p{N}", contraction=""),)),
    "seed-coder": PreTokenizer(
        patterns=(
            rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}",
        )
    ),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer(
        patterns=(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "exaone-moe": PreTokenizer(
        patterns=(
            rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "tekken": PreTokenizer(patterns=(_cased(r"\p{N}"),), ignore_merges=True, bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer(
        patterns=(_cased(r"\p{N}{1,3}", CONTRACTION + "?"),)
    ),
    "kimi-k2": PreTokenizer(
        patterns=(
            r"\p{Han}+|" + _cased(r"\p{N}{1,3}", CONTRACTION + "?", r"&&[^\p{Han}]", r"[\r\n]*"),
        )
    ),
    "youtu": PreTokenizer(
        patterns=(YOUTU_MARKS, _cased(r"\p{N}", CONTRACTION + "?")), ignore_merges=True
    ),
    "deepseek-llm": PreTokenizer(
        patterns=(
            r"[\r\n]",
            r"\s?" + DEEPSEEK_LETTERS,
            DEEPSEEK_MARKS,
            r"\s+$",
            HAN_OR_HANGUL,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer(
        patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN_OR_HANGUL, r"\p{N}")
    ),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(
        patterns=(r"\p{N}{1,3}", CJK, DEEPSEEK3)
    ),
    "spark2_5": PreTokenizer(patterns=(r"\p{N}{1,3}", CJK, SPARK, r"\p{N}")),
    "falcon": PreTokenizer(patterns=(r"[\p{P}$+<=>^~|`]+", GPT2, r"[0-9][0-9][0-9]")),
    "poro-chat bloom gpt3-finnish": PreTokenizer(patterns=(SENTENCE_MARKS,)),
    "viking": PreTokenizer(patterns=(SENTENCE_MARKS, r"\p{N}")),
    "gemma4 granite-embed-multi-311m": PreTokenizer(
        patterns=(LINES,), ignore_merges=True, bos=True, byte_level=False
    ),
    "sarvam-moe": PreTokenizer(patterns=(LINES,), byte_level=False),
    "default": PreTokenizer(patterns=(r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}


def find_pretokenizer(name: str, source: str) -> PreTokenizer:
    """The rule of this name. Raises TokenizerError for an unknown name."""
    names = {key: rule for keys, rule in RULES.items() for key in keys.split()}
    if name not in names:
        raise TokenizerError(
            f"{source}: unknown pre-tokenizer tokenizer.ggml.pre = {name!r}{nearest(name, names)}; "
            "set --tokenizer FOLDER to the model's own tokenizer"
        )
    return names[name]


def patterns_of(steps: Iterable[Mapping[str, Any]]) -> tuple[str, ...] | None:
    """The expressions of a backend's pre-tokenizers, by their states; None if another kind is used.

    `ByteLevel` with its own expression has that of GPT-2.
    """
    found = []
    for step in steps:
        kind = step["type"]
        if kind == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
            pattern = step["pattern"]
            found.append(pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"]))
        elif kind == "Digits" and step["individual_digits"]:
            found.append(r"\p{N}")
        elif kind == "ByteLevel" and not step["add_prefix_space"]:
            found += [GPT2] * step["use_regex"]
        else:
            return None
    return tuple(found)


def name_pretokenizer(
    patterns: tuple[str, ...] | None, *, ignore_merges: bool, architecture: str, source: str
) -> str:
    """The name of the rule with these expressions; of several, the one of the architecture.

    Raises TokenizerError if there is no such rule.
    """
    for keys, rule in RULES.items():
        same = rule.ignore_merges == ignore_merges and rule.byte_level
        if same and rule.patterns == patterns:
            names = keys.split()
            return architecture if architecture in names else names[0]
    raise TokenizerError(
        f"{source}: GGUF files have no name for its pre-tokenizer {patterns}"
        f"{' with whole words first' if ignore_merges else ''}; use --to uqff, which copies the "
        "tokenizer"
    )
