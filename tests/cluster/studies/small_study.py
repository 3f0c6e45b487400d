"""A study small enough to run many times."""

SMALL = [
    *("--method=fedmho", "--runtime=inprocess", "--num-classifiers=1", "--data.max-test=60"),
    *("--classifier.model=cnn", "--classifier.width=0.2", "--classifier.epochs=1"),
    *("--generator.width=0.1", "--generator.epochs=2", "--allocation=label-share"),
    *("--num-samples=60", "--fusion.epochs=1"),
]
