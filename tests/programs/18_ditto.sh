# Ditto: a model of each client's own, scored on the client's own test.
#
# Theirs: 2, TsingZ0/PFLlib: README.md
# Differs: two commands, as above.
onefold run --method ditto --alpha 0.1 --rounds 2 \
    --classifier.model mlp --classifier.epochs 2  # above 0.6
