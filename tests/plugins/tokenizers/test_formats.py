"""Which format reads which files, and a format of an outside plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny.vocabularies import train

from ostro import TokenizerFormat, TokenizerSource, hookimpl
from ostro.core.errors import PluginError, TokenizerError
from ostro.core.plugins.manager import PluginManager
from ostro.core.tokenizer import load_tokenizer
from ostro.pipelines import Tokenizer, build_tokenizer


def load_upper(source: TokenizerSource) -> Tokenizer:
    """The small vocabulary of the tests, whatever the file holds."""
    return build_tokenizer(train(), source, file="upper.vocab")


class Upper:
    @hookimpl
    def ostro_tokenizers(self) -> Iterator[TokenizerFormat]:
        yield TokenizerFormat(
            name="upper",
            claims=lambda source: source.has("upper.vocab") or source.suffix == ".vocab",
            load=f"{__name__}:load_upper",
            usage="upper.vocab",
        )


@pytest.fixture
def plugins() -> PluginManager:
    plugins = PluginManager()
    plugins.load()
    plugins.register(Upper(), "upper")
    return plugins


def test_a_format_of_an_outside_plugin(tmp_path: Path, plugins: PluginManager) -> None:
    (tmp_path / "upper.vocab").touch()
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    for path in (tmp_path, tmp_path / "upper.vocab"):
        tokenizer = load_tokenizer(path, plugins=plugins)
        assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"
        assert tokenizer.eos_ids == {tokenizer.id("</s>")}
    with pytest.raises(TokenizerError, match=r"expected tokenizer\.json.*vocab\.txt"):
        load_tokenizer(tmp_path)
    (tmp_path / "upper.vocab").unlink()
    with pytest.raises(TokenizerError, match=r"vocab\.txt, tekken\.json.*, upper\.vocab \(found"):
        load_tokenizer(tmp_path, plugins=plugins)


def test_two_formats_that_claim_a_folder_are_both_named(
    tmp_path: Path, plugins: PluginManager
) -> None:
    (tmp_path / "upper.vocab").touch()
    (tmp_path / "tokenizer.json").write_text(train().to_str())
    with pytest.raises(PluginError, match=r"(?s)tokenizers.*upper"):
        load_tokenizer(tmp_path, plugins=plugins)


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"), "tokenizer.json"),
        (("spiece.model", "vocab.json", "merges.txt", "vocab.txt"), "sentencepiece"),
        (("vocab.json", "merges.txt", "vocab.txt"), "bpe"),
        (("vocab.txt", "vocab.json"), "wordpiece"),
        (("merges.txt",), None),
    ],
)
def test_exactly_one_built_in_format_claims_a_folder(
    tmp_path: Path, files: tuple[str, ...], chosen: str | None
) -> None:
    for name in files:
        (tmp_path / name).touch()
    plugins = PluginManager()
    plugins.load()
    source = TokenizerSource(root=tmp_path)
    formats = plugins.collect("tokenizers").values()
    assert [each.name for each in formats if each.claims(source)] == ([chosen] if chosen else [])


def test_one_file_is_read_by_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(train().to_str())
    assert load_tokenizer(tmp_path / "other.json").encode("a")
    (tmp_path / "other.bin").touch()
    with pytest.raises(TokenizerError, match=r"other\.bin: not a tokenizer; expected"):
        load_tokenizer(tmp_path / "other.bin")


def test_a_gguf_header_wins_over_the_folder(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(train().to_str())
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.model"):
        load_tokenizer(tmp_path / "model.gguf", metadata={"general.name": "x"})
