"""Weights in and out: directories of Hugging Face, and ONNX."""
