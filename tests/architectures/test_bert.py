"""BERT, as an encoder and as a classifier, against transformers."""

from ostro.core.testing.encoder import EncoderTests


class TestBert(EncoderTests):
    name = "bert"


class TestBertClassifier(EncoderTests):
    name = "bert_classifier"
