# Rounds end when accuracy has not risen for two of them.
#
# Theirs: 2, TsingZ0/PFLlib: README.md
# Differs: two commands, as above.
onefold run --method fedavg --rounds 50 --stop-after 2 --num-large 10 \
    --classifier.model mlp --classifier.epochs 2 --classifier.lr 0.03  # above 0.7
