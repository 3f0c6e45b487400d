# FedAvg over twenty clients whose classes are skewed by a Dirichlet distribution.
#
# Theirs: 2, TsingZ0/PFLlib: README.md
# Differs: two commands: one cuts the data, one trains.
onefold run --method fedavg --num-clients 20 --num-large 20 --alpha 0.5 --rounds 6 \
    --classifier.model mlp --classifier.epochs 3  # above 0.4
