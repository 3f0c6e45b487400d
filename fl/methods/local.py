"""Training alone: the clients exchange nothing. The line that every other method must beat."""

from fl.methods.personal import AnyModelsConfig, Personal, personal_method


def run(frame: Personal, config: AnyModelsConfig) -> None:
    """Rounds of local training, in which as many clients take part as in other methods."""
    for chosen in frame.play():
        frame.clients.train(only=chosen, remember=True, goes_to="client")


METHOD = personal_method("local", AnyModelsConfig, run, any_targets=True)
