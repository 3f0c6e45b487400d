# SCAFFOLD where each client holds two classes.
#
# Theirs: 2, TsingZ0/PFLlib: README.md
# Differs: two commands, as above.
onefold run --method scaffold --partition.kind classes --rounds 4 \
    --classifier.model mlp --classifier.epochs 2 --classifier.lr 0.05  # above 0.25
