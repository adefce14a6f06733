"""clozelab pretrains, fine-tunes, distils and compares the BERT family of encoders."""
