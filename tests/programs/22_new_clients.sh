# Clients that came too late train the finished model a little on what they have.
#
# Theirs: 2, TsingZ0/PFLlib: README.md
# Differs: theirs tells the new clients' mean, ours that of all; each one's is in the report.
onefold run --method fedavg --tested tuned --newcomers 3 --rounds 4 --num-large 10 \
    --classifier.model mlp --classifier.epochs 2 --classifier.lr 0.03  # above 0.7
