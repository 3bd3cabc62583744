"""An example of a package that adds parts to edgespec: a drafter, a command and a format of the server."""
