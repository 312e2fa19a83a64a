"""Unit of privacy: which rows of each person are kept, and the weight that they share.

The guarantee for a person needs each person's choice to depend on nothing but that person's own rows and public
randomness. A choice by the row's place in the file would not do: one more row of one person would move the places,
and so the choices, of all who follow, and a single person's change would reach many. Here a row is drawn by a keyed
hash of its person's id and its place among that person's own rows.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from jaxdpcov.data.cells import MISSING_WORDS, Cells, texts


class Shares(NamedTuple):
    """Weight of each row, zero where it is not kept, and the number of persons; each person's weights sum to one."""

    weights: np.ndarray
    persons: int


def person_ids(cells: Cells) -> Any:
    """Ids as trimmed text, a pyarrow large_string array; a missing id (empty, NA, ...) is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = texts(cells)
    missing = pc.is_in(ids, value_set=pa.array(MISSING_WORDS, pa.large_string()))
    return pc.if_else(missing, pa.scalar(None, pa.large_string()), ids)


def share(ids: Iterable[Any], max_rows: int | None, selection_key: bytes) -> Shares:
    """Keep at most `max_rows` rows of each person and share weight one among them.

    **Formal guarantee**: the weights of one person's rows are a function of the key, the id and the number of that
    person's rows. So replacing all rows of one person by those of another changes no other person's weights, and
    with f(row) in a convex set the sum of weight * f(row) over a person lies in that set: every sensitivity for one
    row holds for one person, with n the number of persons. That is so for any key, a known one too; the key only
    keeps the choice from being steered by whoever writes the rows.

    Rows without an id get weight zero and make no person. (A person for each of them, or one for all, would let
    somebody with both kinds of rows count twice.)

    Args:
        ids: blocks of ids in the order of the rows, each from `person_ids`.
        max_rows: rows kept of each person, None for all.
        selection_key: at least 16 bytes.

    Returns:
        The weights, one for each row, and the number of persons.
    """
    codes, known = _codes(ids)
    if not len(known):
        return Shares(np.zeros(len(codes)), 0)
    counts = np.bincount(codes[codes >= 0], minlength=len(known))
    kept = counts if max_rows is None else np.minimum(counts, min(max_rows, len(codes)))
    weights = np.zeros(len(codes))
    has_id = codes >= 0
    weights[has_id] = 1.0 / kept[codes[has_id]]
    if max_rows is not None:
        crowded = np.flatnonzero(counts > max_rows)
        seeds = np.zeros(len(known), dtype=np.uint64)
        hashed = [_seed(person, selection_key) for person in known.take(crowded).to_pylist()]
        seeds[crowded] = np.array(hashed, dtype=np.uint64)
        rows = np.flatnonzero(has_id & (counts > max_rows)[codes])
        weights[rows[~_chosen(codes[rows], seeds, max_rows)]] = 0.0
    return Shares(weights, len(known))


def _codes(ids: Iterable[Any]) -> tuple[np.ndarray, Any]:
    """A number for each row's id, -1 where it is missing, and the distinct ids (binary) in that numbering."""
    import pyarrow as pa

    chunks = [block.view(pa.large_binary()).dictionary_encode() for block in ids if len(block)]
    if not chunks:
        return np.zeros(0, dtype=np.int64), pa.array([], pa.large_binary())
    unified = pa.chunked_array(chunks).unify_dictionaries()
    parts = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in unified.chunks]
    return np.concatenate(parts), unified.chunk(0).dictionary


def _seed(person: bytes, selection_key: bytes) -> int:
    """64 bits of BLAKE2b of an id, keyed."""
    key = selection_key if len(selection_key) <= 64 else hashlib.blake2b(selection_key).digest()
    return int.from_bytes(hashlib.blake2b(person, digest_size=8, key=key, person=b"jaxdpcov rows").digest(), "little")


def _chosen(codes: np.ndarray, seeds: np.ndarray, max_rows: int) -> np.ndarray:
    """Mask of the `max_rows` rows of each code that are lowest in hash order."""
    if not len(codes):
        return np.zeros(0, dtype=bool)
    order = np.argsort(codes, kind="stable")
    ordinal = _rank(codes[order])
    priority = _mix(seeds[codes[order]], ordinal.astype(np.uint64))
    by_hash = np.lexsort((priority, codes[order]))
    chosen = np.zeros(len(codes), dtype=bool)
    chosen[order[by_hash]] = ordinal < max_rows  # sorted by code either way, so the ranks are the same numbers
    return chosen


def _rank(sorted_codes: np.ndarray) -> np.ndarray:
    """Place of each entry within its run of equal codes."""
    places = np.arange(len(sorted_codes))
    starts = np.r_[True, sorted_codes[1:] != sorted_codes[:-1]]
    return places - np.maximum.accumulate(np.where(starts, places, 0))


def _mix(seed: np.ndarray, ordinal: np.ndarray) -> np.ndarray:
    """Output number `ordinal` of the SplitMix64 generator started at `seed` (Steele, Lea, Flood 2014)."""
    z = seed + (ordinal + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)  # wraps around, as it should
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
