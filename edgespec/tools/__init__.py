"""Tools that a model may call: the formats of calls, and servers of the Model Context Protocol (MCP) that run them."""
