"""Documents → blocks: one file per input format, planned for a pass, gathered by number."""

from clozelab.blocks.causal import Causal
from clozelab.blocks.doc_sentences import DocSentences
from clozelab.blocks.full_sentences import FullSentences
from clozelab.blocks.segment_pair import SegmentPair
from clozelab.blocks.sentence_order import SentenceOrderPair
from clozelab.blocks.sentence_pair import SentencePair
from clozelab.blocks.stream_pair import StreamPair
from clozelab.blocks.words import WordSentences

PARTS: dict[str, type] = {
    "segment_pair": SegmentPair,
    "sentence_pair": SentencePair,
    "full_sentences": FullSentences,
    "doc_sentences": DocSentences,
    "sentence_order": SentenceOrderPair,
    "stream_pair": StreamPair,
    "causal": Causal,
    "words": WordSentences,
}

__all__ = ["PARTS"]
