"""Measuring inside a user's own program: around their steps, and as a callback of the Hugging Face Trainer."""
