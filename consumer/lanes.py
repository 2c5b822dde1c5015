"""One view of a home, and the partitions of a consumer that follow it."""

from __future__ import annotations

from ..journal.places import PartitionId
from ..journal.position import Journal
from .core.home_view import HomeView
from .followed import Followed
from .home_starts import Attachment


class Lane:
    """One view of a home, and the partitions that are attached to it, or will be."""

    def __init__(self, home: Journal, lowest: int) -> None:
        self.view = HomeView(home, lowest)
        self.attached: dict[PartitionId, Followed] = {}
        self.due: list[tuple[int, Followed, Attachment]] = []
        """Partitions to be attached when reading comes to an offset, the highest first."""

    def add(self, followed: Followed, attachment: Attachment) -> None:
        """Adds a partition that begins at or above where it stands."""
        self.due.append((attachment.offset, followed, attachment))
        self.due.sort(key=lambda item: -item[0])

    def attach_due(self) -> list[Followed]:
        """Attaches the partitions to whose offset reading has come. Returns them."""
        found = []
        while self.due and self.due[-1][0] <= self.view.next_offset:
            _, followed, attachment = self.due.pop()
            self.view.attach(followed.partition, followed.start, attachment.listed)
            self.attached[followed.partition] = followed
            followed.attach(self.view)
            found.append(followed)
        return found

    def resume(self, followed: Followed) -> bool:
        """Attaches a partition that its view keeps ahead. Returns False if it can't."""
        partition, passed = followed.partition, followed.start.passed
        if passed is None or not self.view.may_resume(partition, passed):
            return False
        self.view.resume(partition, passed)
        self.attached[partition] = followed
        followed.attach(self.view)
        return True

    def come_to(self, offset: int) -> None:
        """Attaches the partitions whose offset lies at or below this one, to which it was read."""
        while self.due and self.due[-1][0] <= offset:
            self.view.read_to(self.due[-1][0])
            self.attach_due()

    def join(self, other: Lane) -> None:
        """Takes over the partitions of a lane that stands at the same place."""
        self.view.absorb(other.view)
        for followed in other.attached.values():
            followed.move(self.view)
        self.attached |= other.attached
        self.due = sorted([*self.due, *other.due], key=lambda item: -item[0])

    def drop(self, followed: Followed) -> None:
        """Stops following a partition."""
        if self.attached.get(followed.partition) is followed:
            del self.attached[followed.partition]
            self.view.detach(followed.partition)
        self.due = [item for item in self.due if item[1] is not followed]

    def leave(self, followed: Followed) -> None:
        """Stops following a partition that may come again."""
        if self.attached.get(followed.partition) is followed:
            del self.attached[followed.partition]
            self.view.leave(followed.partition)

    def follows(self, partition: PartitionId) -> bool:
        """Returns whether it follows a partition, or will."""
        return partition in self.attached or any(f.partition == partition for _, f, _ in self.due)

    @property
    def is_idle(self) -> bool:
        """Whether it follows nothing."""
        return not self.attached and not self.due


def join(lanes: list[Lane]) -> None:
    """Joins the lanes of a home that stand at the same place, into the list that is given."""
    lanes.sort(key=lambda lane: lane.view.next_offset)
    at = 0
    while at + 1 < len(lanes):
        if lanes[at].view.next_offset == lanes[at + 1].view.next_offset:
            lanes[at].join(lanes.pop(at + 1))
        else:
            at += 1
