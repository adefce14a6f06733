"""The formats that a recipe may name: documents → blocks, planned for a pass."""

from clozelab.blocks.pairs import SegmentPair, SentenceOrderPair, SentencePair
from clozelab.blocks.sentences import DocSentences, FullSentences
from clozelab.blocks.single import SentenceRows, SingleSentences
from clozelab.blocks.stream import Causal, StreamPair
from clozelab.blocks.words import WordSentences

PARTS: dict[str, type] = {
    "segment_pair": SegmentPair,
    "sentence_pair": SentencePair,
    "full_sentences": FullSentences,
    "doc_sentences": DocSentences,
    "single_sentences": SingleSentences,
    "sentence_rows": SentenceRows,
    "sentence_order": SentenceOrderPair,
    "stream_pair": StreamPair,
    "causal": Causal,
    "words": WordSentences,
}

__all__ = ["PARTS"]
