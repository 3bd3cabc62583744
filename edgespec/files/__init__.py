"""The folders of edgespec's files, and atomic writing."""
