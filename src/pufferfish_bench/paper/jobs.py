"""The jobs of a table: which runs it consists of, where they are written, and whether they are done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.records import run_directory

if TYPE_CHECKING:
    from pufferfish_bench.paper.cells import Cell


@dataclass(frozen=True)
class Identity:
    """What makes a run of a cell the run it is, and where it is written."""

    settings: dict[str, Any]
    directory: Path | None = None  # None: nothing is trained
    links: Mapping[str, int] = field(default_factory=dict)  # of the network lab; empty outside the lab


@dataclass(frozen=True)
class Job:
    """One run of a cell, and the folder that keeps its record."""

    cell: "Cell"
    seed: int
    record: Path
    identity: Identity

    @property
    def name(self) -> str:
        return "/".join(self.record.parts[-3:])

    @property
    def settings(self) -> dict[str, Any]:
        return self.identity.settings

    @property
    def directory(self) -> Path | None:
        return self.identity.directory

    @property
    def links(self) -> Mapping[str, int]:
        return self.identity.links

    @property
    def done(self) -> bool:
        """Whether the complete record of this job is kept; a record of other settings or other links is not."""
        try:
            return self.finished_in(self.record)
        except InputError:
            return False

    @property
    def trained(self) -> bool:
        """Whether the run itself is finished, for this table or for another. A directory that holds another run is refused."""
        return self.directory is not None and self.finished_in(self.directory)

    def finished_in(self, folder: Path) -> bool:
        return run_directory.complete(folder, self.settings, self.links)

    def run(self) -> bool:
        """Do the work and keep the record; whether that succeeded."""
        return self.cell.run(self)
