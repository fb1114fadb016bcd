"""Factor graphs: read from networkx, generated, written back, drawn, and lowered to the flat models that message passing takes."""
