"""Why a store, a source or a read was refused. One tree, so that a caller can catch `EngramError` alone."""

from __future__ import annotations

from enum import StrEnum


class Reject(StrEnum):
    """The closed list of reasons for which a packed store is refused."""

    MISSING = "missing"
    NOT_A_STORE = "not_a_store"
    OTHER_VERSION = "other_version"
    OTHER_MODEL = "other_model"
    OTHER_REVISION = "other_revision"
    OTHER_LAYER = "other_layer"
    OTHER_TP = "other_tp"
    OTHER_RANK = "other_rank"
    OTHER_OWNERSHIP = "other_ownership"
    MANIFEST_CORRUPT = "manifest_corrupt"
    HEADER_CORRUPT = "header_corrupt"
    TRUNCATED = "truncated"
    HOLE = "hole"
    FOREIGN_PAGE = "foreign_page"
    MISPLACED_PAGE = "misplaced_page"
    PAGE_CORRUPT = "page_corrupt"
    READ_FAILED = "read_failed"


class EngramError(Exception):
    """Anything this package refuses."""


class ConfigError(EngramError):
    """The model's configuration or an argument cannot describe an Engram table."""


class SourceError(EngramError):
    """The checkpoint does not hold the tables its configuration promises."""


class SpaceError(EngramError):
    """The file system has less room than the packed store takes."""


class MismatchError(EngramError):
    """A packed row differs from its source."""


class OwnershipError(EngramError):
    """A row id lies outside the slice that this store holds."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class StoreError(EngramError):
    """A store that must not be read; `reason` is the machine-readable half."""

    def __init__(self, reason: Reject, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class ReadError(StoreError):
    """One page could not be proven right while reading; names the first row that wanted it."""

    def __init__(self, reason: Reject, message: str, *, row: int, page: int) -> None:
        super().__init__(reason, message)
        self.row = row
        self.page = page
