"""Parity: the same tokens by decoding, by prefill and by the trainer, the gap by layer type, and the setting that causes it."""
