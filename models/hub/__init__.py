"""The Hugging Face hub and its cache on this machine."""
