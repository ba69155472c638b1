"""BERT, as an encoder and as a classifier, against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestBert(ArchitectureTests):
    name = "bert"


class TestBertClassifier(ArchitectureTests):
    name = "bert_classifier"
