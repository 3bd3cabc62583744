"""GGUF files, read without llama.cpp."""
