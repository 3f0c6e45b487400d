# Two methods, three times each: means and standard deviations as one table.
#
# Theirs: 3, TsingZ0/PFLlib: README.md
# Differs: three commands, which print each method's mean; there is no table.
onefold sweep --grid method=fedavg,fedprox seed=0,1,2 --num-clients 5 --num-large 5 --rounds 1 \
    --classifier.model mlp --classifier.epochs 8  # above 30
