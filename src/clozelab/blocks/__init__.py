"""Documents → blocks: one file per input format, planned for a pass, gathered by number."""

from clozelab.blocks.causal import Causal
from clozelab.blocks.doc_sentences import DocSentences
from clozelab.blocks.full_sentences import FullSentences
from clozelab.blocks.segment_pair import SegmentPair
from clozelab.blocks.sentence_order import SentenceOrder
from clozelab.blocks.sentence_pair import SentencePair
from clozelab.blocks.stream_pair import StreamPair
from clozelab.blocks.words import Words

PARTS: dict[str, type] = {
    "segment_pair": SegmentPair,
    "sentence_pair": SentencePair,
    "full_sentences": FullSentences,
    "doc_sentences": DocSentences,
    "sentence_order": SentenceOrder,
    "stream_pair": StreamPair,
    "causal": Causal,
    "words": Words,
}

__all__ = ["PARTS"]
