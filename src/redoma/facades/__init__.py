"""The interfaces of the source systems, each a thin file over the executor."""
