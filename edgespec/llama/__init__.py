"""The room around llama.cpp: the only place that touches the native library."""
