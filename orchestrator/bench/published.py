"""Reads published tables as records marked "theirs", so that they can stand beside our own rows, with their
gaps shown."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from orchestrator.bench.figures import UNITS
from orchestrator.bench.record import (
    Cache,
    Figure,
    Hardware,
    Measure,
    Method,
    PromptKind,
    Provenance,
    Record,
    Row,
    hardware_name,
)
from orchestrator.errors import ConfigError
from orchestrator.model.frozen import Frozen

PACKAGED = Path(__file__).with_name("published.yaml")


class Line(Frozen):
    """One line of a published table: one value a column, null where the table has none."""

    kind: PromptKind
    figure: str
    values: tuple[float | None, ...]

    @model_validator(mode="after")
    def _known(self) -> Line:
        if self.figure not in UNITS:
            raise ValueError(f"figure: {self.figure!r} is none of {', '.join(UNITS)}")
        return self


class Table(Frozen):
    """One published table as it stands in its source. What the source does not state stays out."""

    name: str
    source: str
    provenance: Provenance
    measure: Literal[Measure.DECODE, Measure.PREFILL]
    cache: Cache = Cache.UNSTATED
    load_from: str = "not stated"
    prompt_tokens: int | None = None
    """Of every row of a decode table, where it is stated."""
    columns: tuple[int, ...] = Field(min_length=1)
    """Streams of a decode table, prompt tokens of a prefill table."""
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _rectangular(self) -> Table:
        for line in self.lines:
            if len(line.values) != len(self.columns):
                raise ValueError(
                    f"lines: {line.kind} {line.figure} has {len(line.values)} values, "
                    f"the table {len(self.columns)} columns"
                )
        return self

    def record(self) -> Record:
        """The table as a record: each cell is one row or one more figure of a row, of a single run."""
        hardware = tuple(
            Hardware(name=hardware_name(part.name), count=part.count) for part in self.provenance.hardware
        )
        return Record(
            schema="sparkyard/bench/v1",
            name=self.name,
            origin="theirs",
            source=self.source,
            method=Method(
                load_from=self.load_from,
                endpoint="unstated",
                rounds=1,
                warm_up_rounds=0,
                seed=None,
                temperature=None,
                ignore_eos=None,
            ),
            provenance=self.provenance.model_copy(update={"hardware": hardware}),
            rows=tuple(
                row
                for kind in dict.fromkeys(line.kind for line in self.lines)
                for place, column in enumerate(self.columns)
                if (row := self._row(kind, place, column)) is not None
            ),
            notes=self.notes,
        )

    def _row(self, kind: PromptKind, place: int, column: int) -> Row | None:
        figures = tuple(
            Figure(name=line.figure, unit=UNITS[line.figure], median=value, low=value, high=value, rounds=1)
            for line in self.lines
            if line.kind is kind and (value := line.values[place]) is not None
        )
        if not figures:
            return None
        prefill = self.measure is Measure.PREFILL
        return Row(
            measure=self.measure,
            kind=kind,
            streams=1 if prefill else column,
            cache=self.cache,
            prompt_tokens=column if prefill else self.prompt_tokens,
            figures=figures,
        )


class Published(Frozen):
    """A file of published tables."""

    schema_: Literal["sparkyard/published/v1"] = Field(alias="schema")
    tables: tuple[Table, ...]


def read_published(path: Path = PACKAGED) -> tuple[Record, ...]:
    """The tables of a file as records.

    Raises:
        ConfigError: the file cannot be read or says something else than it should.
    """
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
        return tuple(table.record() for table in Published.model_validate(content).tables)
    except OSError as problem:
        raise ConfigError([f"{path}: {problem.strerror}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise ConfigError([f"{path}: no YAML: {problem}"]) from None
    except ValidationError as problem:
        raise ConfigError(
            [f"{path}: {'.'.join(map(str, error['loc']))}: {error['msg']}" for error in problem.errors()]
        ) from None
