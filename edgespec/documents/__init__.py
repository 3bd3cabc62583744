"""The text of documents: PDF, DOCX, HTML, CSV and plain text."""
