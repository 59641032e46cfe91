"""Results as text, frames and files; nothing here computes memory."""
