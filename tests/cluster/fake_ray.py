"""A Ray without processes: its actors are objects here, and do at once what they are asked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(eq=False)
class Reference:
    """What stands for a result: its value, what went wrong, or nothing as long as it waits."""

    value: Any = None
    error: Exception | None = None
    ready: bool = True


class Stream:
    """What stands for the results of a generator, one reference after another."""

    ready = True

    def __init__(self, references: Sequence[Reference]) -> None:
        self.left = [*references]
        self.ready = all(reference.ready for reference in references)

    def __next__(self) -> Reference:
        if not self.left:
            raise StopIteration
        return self.left.pop(0)


class FakeActor:
    """The handle of an actor, and what Ray was told of it."""

    def __init__(self, behind: Any, asked: dict[str, Any]) -> None:
        self.behind, self.asked = behind, asked

    def __getattr__(self, name: str) -> Any:
        return Call(getattr(self.behind, name))


class Call:
    """A method of an actor, to be called from afar."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def options(self, **_: Any) -> "Call":
        return self

    def remote(self, *arguments: Any) -> Any:
        result = self.method(*arguments)
        return result if isinstance(result, Reference | Stream) else Reference(result)


class FakeRay:
    """Takes the place of a module's ``ray``; ``make`` makes what is behind each actor.

    A method of that answers with its result, or with a Reference or a Stream of its own.
    """

    def __init__(self, make: Callable[..., Any], **context: Any) -> None:
        self.make, self.context = make, context
        self.actors: list[FakeActor] = []
        self.ended: list[FakeActor] = []

    def put(self, value: Any) -> Any:
        return value

    def remote(self, _: type) -> Any:
        def options(**asked: Any) -> Any:
            return SimpleNamespace(remote=lambda *arguments: start(asked, *arguments))

        def start(asked: dict[str, Any], *arguments: Any) -> FakeActor:
            self.actors.append(FakeActor(self.make(*arguments), asked))
            return self.actors[-1]

        return SimpleNamespace(options=options)

    def kill(self, actor: FakeActor) -> None:
        self.ended.append(actor)

    def get(self, references: Any) -> Any:
        if isinstance(references, Sequence):
            return [self.get(reference) for reference in references]
        if references.error:
            raise references.error
        return references.value

    def wait(
        self, references: Sequence[Any], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Any], list[Any]]:
        ready = [reference for reference in references if reference.ready][:num_returns]
        assert ready or timeout is not None, "waits for ever"
        return ready, [reference for reference in references if reference not in ready]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(
            get_assigned_resources=lambda: self.context, get_node_id=lambda: "this node"
        )
