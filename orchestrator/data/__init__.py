"""Data for supervised stages: chats, demonstrations, the model's own answers, pairs."""
