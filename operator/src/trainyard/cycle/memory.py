"""What the planner said earlier in a cycle.

Of many jobs that wait most want the same, and get nothing: where nobody has taken room meanwhile, the answer to one is the answer
to all. Without this, a hundred jobs that wait for five thousand nodes look at each of them three hundred times a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from typing import Final, TypeVar, cast

from trainyard.planner.request import Request

T = TypeVar("T")

_SAID: Final = tuple(
    of.name for of in fields(Request) if of.name not in ("job", "pod_spec", "requests", "per_node", "among", "unfit")
)
"""What of a request its demand does not say."""


@dataclass(slots=True)
class Memory:
    """Answers by question. Lives as long as a cycle does."""

    _wishes: dict[Hashable, int] = field(default_factory=dict)
    _answers: dict[Hashable, object] = field(default_factory=dict)

    def wish(self, request: Request) -> int:
        """A number for what a request asks for, whoever asks: equal for requests that the planner cannot tell apart."""
        # The demand says all of the pod and of what it asks that the planner looks at.
        said = tuple(getattr(request, name) for name in _SAID)
        return self._wishes.setdefault((request.demand, said), len(self._wishes))

    def recall(self, question: Hashable, ask: Callable[[], T]) -> T:
        """The answer to a question that was asked before, else what `ask` says. question: all that the answer depends on."""
        if question not in self._answers:
            self._answers[question] = ask()
        return cast(T, self._answers[question])
