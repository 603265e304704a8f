"""The files that stages exchange: versioned dataclasses with strict JSON load and save.

One module per file: `sensitivity`, `selection`, `provenance`, `kld` (one model on one text) and
`gate`. `store` reads and writes them, `schema` turns type hints into rules.
"""
