#!/bin/sh
# How time, memory and bytes grow with the number of clients, on all GPUs of this machine.
onefold study --method fedmho --num-classifiers 1 --num-clients 10,100,1000 --samples-per-client 60 "$@"
