"""A corpus of documents for word search (BM25, Robertson and Zaragoza, 2009, in Lucene's variant) and retrieval.

The only user of `bm25s`. Each process makes a corpus once and shares it among all episodes. It is never changed.
"""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from temper.envs.core.row_format import Row
from temper.envs.data.config import DataConfig
from temper.envs.data.rows import read_rows

WORD = re.compile(r"\w+")
IDS, TEXTS = ("id", "_id", "docid"), ("text", "contents", "content")
MAX_QUERY_WORDS = 64
LOCK = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document. Its title may be empty."""

    id: str
    title: str
    text: str


class Corpus:
    """Documents in order, with their index."""

    def __init__(self, documents: Sequence[Document]) -> None:
        import bm25s

        self.documents = tuple(documents)
        self.by_id = {document.id: document for document in documents}
        if len(self.by_id) < len(self.documents) or not self.documents:
            raise ValueError("a corpus needs documents with unique ids")
        self.index: bm25s.BM25 = bm25s.BM25(method="lucene")
        self.index.index([_words(f"{each.title} {each.text}") for each in documents], show_progress=False)

    def search(self, query: str, count: int) -> list[Document]:
        """Return the best `count` documents, best first, ties in order. Documents without a word of the query are omitted."""
        words = self.index.get_tokens_ids(_words(query)[:MAX_QUERY_WORDS])
        if not words:
            return []
        scores = self.index.get_scores_from_ids(words)
        count = min(count, len(scores))
        least = np.partition(scores, -count)[-count]
        found = np.flatnonzero((scores >= least) & (scores > 0))
        best = found[np.argsort(-scores[found], kind="stable")][:count]
        return [self.documents[int(place)] for place in best]

    def open(self, name: str) -> Document:
        """Return the document of this id. Raise `ValueError` if there is none."""
        if name not in self.by_id:
            raise ValueError("unknown id; take one that a search gave")
        return self.by_id[name]


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def document_of(row: Row) -> Document:
    """Return the document of a row: `id`, `_id` or `docid`; `text`, `contents` or `content`; optionally `title`."""
    name = next((row[key] for key in IDS if isinstance(row.get(key), str | int)), None)
    text = next((row[key] for key in TEXTS if isinstance(row.get(key), str)), None)
    if name is None or text is None:
        raise ValueError(f"a document needs {' or '.join(IDS)} and {' or '.join(TEXTS)}; the row has {sorted(row)}")
    title = row.get("title")
    return Document(id=str(name), title=title if isinstance(title, str) else "", text=text)


def load_corpus(path: str) -> Corpus:
    """Return the corpus of a file, a folder or a hub name, made once. Raise any error of `read_rows`."""
    with LOCK:
        return _read(path)


@lru_cache(maxsize=4)
def _read(path: str) -> Corpus:
    documents, _ = read_rows(DataConfig(path=path), parse=lambda row, _number: document_of(row), on_error="raise")
    try:
        return Corpus(documents)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@lru_cache(maxsize=256)
def make_corpus(documents: tuple[tuple[str, str, str], ...]) -> Corpus:
    return Corpus([Document(id=name, title=title, text=text) for name, title, text in documents])
