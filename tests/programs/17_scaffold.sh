# SCAFFOLD where each client holds two classes.
#
# Theirs: 2, TsingZ0/PFLlib: README.md
# Differs: two commands, as above.
onefold run --method scaffold --partition.kind classes --rounds 5 \
    --classifier.model mlp --classifier.epochs 3 --classifier.lr 0.05  # above 0.3
