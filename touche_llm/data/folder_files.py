"""Patterns of the files in an index folder; a folder with other files is never replaced."""

BM25_FILES = (
    "manifest.json",
    *("params.index.json", "vocab.index.json"),
    *("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy"),
)
INDEX_FILES = (
    *("manifest.json", "documents.sqlite", "parents.npy", "bad_lines.txt"),
    *(f"{table}.{name}.npy" for table in ("documents", "parts") for name in ("ids", "id_ends")),
    *(f"bm25-{table}/{name}" for table in ("documents", "parts") for name in BM25_FILES),
)
