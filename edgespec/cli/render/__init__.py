"""What commands print: rows, tables and statistics."""
