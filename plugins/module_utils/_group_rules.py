# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a rank of a serving group says of itself, and when ranks start and stop together.

A two-box engine is one engine. A rank that starts alone waits for ever, a rank whose partner was started anew never
finds it, and neither says a word about it. So every rank publishes what it is doing, and these rules are all that the
ranks have in common: there is no coordinator, and no rank gives another one an order.

* A start of a rank has a token, the invocation id of its systemd unit. Ranks whose start gates are open meet in a
  *round*: the hash of all of their tokens. A rank goes ahead only when every other rank sees it too, so that a link
  that works in one direction starts nothing, and an engine never meets a partner of an earlier round.
* A rank in a round ends it when another rank is not in that round any more, or has not answered for too long.

Pure: no clock, no network. The daemon around it is _group_daemon.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import hashlib
import math
import re
import typing as t

# What is older does not count as seen when ranks meet.
FRESH_S: t.Final = 4.0
# How long after the start of a round the others may still be on their way into it.
JOIN_S: t.Final = 20.0
# How long another rank has to be seen to have given up before this one gives up, too: a person, or a playbook, starts
# one after the other.
GIVEN_UP_S: t.Final = 30.0
# A box that refuses the connection is there, and so is the link: its daemon is being started anew, maybe on a busy box.
REFUSED_S: t.Final = 60.0
_MAX_TEXT: t.Final = 1000
# What gloo and NCCL say of an engine at the other end that is gone.
_PEER_GONE: t.Final = re.compile(
    r"connection (?:closed|reset) by peer|remote process exited|ncclRemoteError", re.IGNORECASE
)

# What a rank says that has given up for another one.
_DOWN: t.Final = re.compile(r"rank (?P<rank>\d+) \([^()]*\) stays down: ")

Stage = t.Literal["stopped", "given-up", "ending", "pausing", "gating", "open", "booting", "serving"]
_STAGES: t.Final[c.Mapping[str, str]] = {
    "stopped": "is stopped",
    "given-up": "stays down",
    "ending": "is ending its engine",
    "pausing": "is about to start again",
    "gating": "waits for its memory",
    "open": "is ready to start",
    "booting": "is booting",
    "serving": "is serving",
}
_IN_ROUND: t.Final = ("booting", "serving")


class StateError(ValueError):
    """An answer that is not the state of the rank that was asked for. The text says why not."""


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A rank of the group, and where it answers."""

    rank: int
    box: str
    address: str

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.box})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a rank left a round.

    ``own`` says that it left of itself, not because of another rank, and ``blameless`` that it left for no fault of any
    rank: by an order, or because another one could not be asked. ``error`` is the first error in its engine's log,
    empty where it said none. Times are seconds since the epoch, 0 for none.
    """

    round: str
    cause: str
    own: bool
    at: float
    error: str = ""
    error_at: float = 0.0
    echo: bool = False
    blameless: bool = False

    @classmethod
    def read(cls, data: object) -> Ended | None:
        """Read what another rank published, or what was kept in a file; None where it is not usable."""
        if not isinstance(data, dict):
            return None
        try:
            return cls(
                round=_text(data["round"]),
                cause=_text(data["cause"]),
                own=bool(data["own"]),
                at=_number(data["at"]),
                error=_text(data.get("error", "")),
                error_at=_number(data.get("error_at", 0)),
                echo=bool(data.get("echo", False)),
                blameless=data.get("blameless") is True,
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """What a rank publishes. ``sees`` are the tokens of the other ranks as it knows them, by rank.

    ``proving`` says that its box switches, and that this start has still to be proven for it; ``blameless`` that the
    engine of this start is being ended for no fault of any rank.
    """

    instance: str
    spec: str
    rank: int
    token: str
    stage: Stage
    round: str
    sees: c.Mapping[int, str]
    said: str
    ended: Ended | None
    now: float
    proving: bool = False
    blameless: bool = False

    @property
    def in_round(self) -> bool:
        """Whether its engine runs."""
        return self.stage in _IN_ROUND

    def as_dict(self) -> dict[str, t.Any]:
        """Return the state as it is published."""
        return {
            **dataclasses.asdict(self),
            "sees": {str(rank): token for rank, token in self.sees.items()},
        }

    @classmethod
    def read(cls, data: object, instance: str, rank: int) -> RankState:
        """Read what was published; raise StateError where it is not the state of that rank of that instance."""
        if not isinstance(data, dict) or data.get("instance") != instance or data.get("rank") != rank:
            raise StateError(f"what answers there is not rank {rank} of {instance}")
        stage, sees = data.get("stage"), data.get("sees")
        if not isinstance(stage, str) or stage not in _STAGES or not isinstance(sees, dict):
            raise StateError(f"rank {rank} of {instance} speaks another language; deploy all boxes of the group")
        try:
            return cls(
                instance=instance,
                spec=_text(data["spec"]),
                rank=rank,
                token=_text(data["token"]),
                stage=t.cast("Stage", stage),
                round=_text(data["round"]),
                sees={int(one): _text(token) for one, token in sees.items()},
                said=_text(data["said"]),
                ended=Ended.read(data.get("ended")),
                now=_number(data["now"]),
                proving=data.get("proving") is True,
                blameless=data.get("blameless") is True,
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise StateError(
                f"rank {rank} of {instance} speaks another language; deploy all boxes of the group"
            ) from None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a rank knows of another one: its last answer, how old that is, and why there is no newer one.

    ``given_up_s`` says for how long it has been seen to have given up without a break, ``refused`` that its box is
    there and only its daemon is not. In ``stalled_s`` of ``silent_s`` it was this rank that did not run and could hear
    nobody.
    """

    member: Member
    state: RankState | None
    silent_s: float
    error: str = ""
    given_up_s: float = 0.0
    refused: bool = False
    stalled_s: float = 0.0

    @property
    def token(self) -> str:
        """The token of the start that is under way there, empty where there is none or the answer is old."""
        if self.state is None or self.silent_s > FRESH_S or self.state.stage in ("stopped", "given-up"):
            return ""
        return self.state.token

    @property
    def gives_up(self) -> bool:
        """Whether it has given up and nobody seems to start it again. An old answer says nothing of that."""
        given_up = self.state is not None and self.state.stage == "given-up" and self.silent_s <= FRESH_S
        return given_up and self.given_up_s >= GIVEN_UP_S

    def words(self) -> str:
        """Return what the other rank is doing, in words."""
        if self.state is None or self.silent_s > FRESH_S:
            why = f" ({self.error})" if self.error else ""
            return f"{self.member} does not answer at {self.member.address}{why}, for {self.silent_s:.0f} s"
        said = f": {self.state.said}" if self.state.said else ""
        if self.state.stage == "given-up" and (root := self.root) is not None:
            # Ranks give up for each other in turn; the cause is told once.
            said = f": {root[1]}" if root[0] != self.member.rank else f": {_DOWN.sub('', root[1])}"
        return f"{self.member} {_STAGES[self.state.stage]}{said}"

    @property
    def root(self) -> tuple[int, str] | None:
        """The rank that this one has given up for, and what that one has said; None where it has its own cause."""
        said = self.state.said if self.state is not None else ""
        last = next(reversed(list(_DOWN.finditer(said))), None)
        return None if last is None else (int(last["rank"]), said[last.start() :])


@dataclasses.dataclass(frozen=True, slots=True)
class Meeting:
    """Whether the ranks can start: the round and its tokens, or what is waited for, or why the start is refused."""

    round: str = ""
    tokens: tuple[str, ...] = ()
    waiting: str = ""
    refused: str = ""


def round_of(tokens: c.Sequence[str]) -> str:
    """Return the name of the round that starts with these tokens, in the order of the ranks."""
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:16]


def meet(own: RankState, others: c.Sequence[Seen]) -> Meeting:
    """Decide whether a rank whose gate is open may start now."""
    for one in others:
        if one.gives_up:
            root = one.root
            # Who has given up for a third rank is not to blame; who has for this one has to be started as well.
            return Meeting(refused=one.words() if root is None or root[0] == own.rank else root[1])
    tokens = _in_order(own, {one.member.rank: one.token for one in others})
    name = round_of(tokens)
    for one in others:
        if not one.token or one.state is None:
            return Meeting(waiting=one.words())
        if one.state.spec != own.spec:
            return Meeting(waiting=f"{one.member} was deployed with other settings; run site.yml for the whole group")
        if one.state.in_round and one.state.round == name:
            continue
        if one.state.stage != "open":
            return Meeting(waiting=one.words())
        unseen = _unseen(one.state, own, others)
        if unseen:
            return Meeting(waiting=f"{one.member} does not see {unseen} yet")
    return Meeting(round=name, tokens=tokens)


def _unseen(state: RankState, own: RankState, others: c.Sequence[Seen]) -> str:
    """Return whom another rank does not see; who sees all would else start without those who do not see each other."""
    if state.sees.get(own.rank) != own.token:
        return "this rank"
    thirds = (one for one in others if one.member.rank != state.rank)
    return next((str(one.member) for one in thirds if state.sees.get(one.member.rank) != one.token), "")


def _in_order(own: RankState, others: c.Mapping[int, str]) -> tuple[str, ...]:
    tokens = {**others, own.rank: own.token}
    return tuple(tokens[rank] for rank in sorted(tokens))


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """Why a rank has to leave its round. ``blameless`` says that no rank has failed: it is no try of this one."""

    cause: str
    blameless: bool


def lost(
    own: RankState, tokens: c.Sequence[str], others: c.Sequence[Seen], *, silence_s: float, age_s: float
) -> Loss | None:
    """Return why a rank cannot stay in its round, None where every other rank is in it.

    ``tokens`` are those of the round, in the order of the ranks; ``age_s`` is how long ago it began.
    """
    if not own.round:
        return Loss("it runs in no round, so nobody knows which partner it has", blameless=True)
    for one in others:
        silent_s = one.silent_s - one.stalled_s
        if silent_s > (max(silence_s, REFUSED_S) if one.refused else silence_s):
            why = f": {one.error}" if one.error else ""
            cause = f"{one.member} has not answered at {one.member.address} for {silent_s:.0f} s{why}"
            return Loss(cause, blameless=True)
        state = one.state
        if state is None or (state.in_round and state.round == own.round):
            continue
        joining = state.stage == "open" and state.token == tokens[one.member.rank]
        if not (joining and age_s < JOIN_S):
            return Loss(_left(one, own.round), _left_blameless(state, own.round))
    return None


def _left_blameless(state: RankState, name: str) -> bool:
    """Return whether another rank is out of a round for no fault of any rank.

    What it says of how it left that round decides. It says nothing of it while its engine still ends, and where it has
    never come into the round, or has forgotten it with a reboot.
    """
    if state.ended is not None and state.ended.round == name:
        return state.ended.blameless
    if state.stage in ("ending", "pausing"):
        return state.blameless
    return state.stage in ("stopped", "gating", "open")


def _left(one: Seen, name: str) -> str:
    state = one.state
    if state is not None and state.ended is not None and state.ended.round == name:
        return f"{one.member} left: {state.ended.cause}"
    if state is not None and state.in_round:
        return f"{one.member} has started without this rank"
    return one.words()


def story(records: c.Mapping[Member, Ended]) -> str:
    """Say in one line why a round ended: who left first of itself, and the first error over all ranks.

    The times of ``records`` are of one clock. The loudest error is often on the wrong box, where it only echoes another
    rank's end; an echo says nothing that the rank which left first does not say better.
    """
    own = {member: record for member, record in records.items() if record.own}
    # Whose error came first and is only an echo has followed another rank, however soon its engine had ended.
    causes = {
        member: record for member, record in own.items() if not (record.echo and 0 < record.error_at <= record.at)
    }
    first, record = min((causes or own or records).items(), key=lambda item: _left_at(item[1]))
    line = f"{first} left first: {record.cause}" if own else f"no rank left of itself: {record.cause}"
    if own and not causes and (gone := _gone(record, records)) is not None:
        # Its daemon was quicker to see the other rank leave than its engine to say that something of it was dead.
        line = f"{gone} left first: {first} lost the connection to its engine: {record.error}"
    errors = {member: one for member, one in records.items() if one.error and not one.echo}
    if errors:
        failed, error = min(errors.items(), key=lambda item: item[1].error_at)
        if error.error not in line:
            line += f"; the first error, on {failed}: {error.error}"
    return line


def _gone(echo: Ended, records: c.Mapping[Member, Ended]) -> Member | None:
    """Return the rank whose engine was gone for another one, by the echo that this left there; None where it is none.

    That rank has been made to leave by the other one's end, as far as it knows; not by a link, nor by an order.
    """
    if not _PEER_GONE.search(echo.error):
        return None
    made = [member for member, record in records.items() if not record.own and not record.blameless]
    named = [member for member in made if re.search(rf"(?<![\d.]){re.escape(member.address)}(?![\d.])", echo.error)]
    return next(iter(named or (made if len(records) == 2 else [])), None)


def _left_at(record: Ended) -> float:
    """Return when a rank left: an error of its own comes before the end of the engine that it brings about."""
    return min(record.at, record.error_at) if record.own and record.error_at and not record.echo else record.at


def _number(value: object) -> float:
    """Return a number that came over the network; NaN and infinity are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _text(value: object) -> str:
    """Return a text that came over the network as one short line."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return " ".join("".join(char if char.isprintable() else " " for char in value).split())[:_MAX_TEXT]
