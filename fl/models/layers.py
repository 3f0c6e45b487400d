"""Unions of torch's classes for one kind of layer: any dropout, any BatchNorm."""

from torch import nn

AnyDropout = (
    nn.Dropout
    | nn.Dropout1d
    | nn.Dropout2d
    | nn.Dropout3d
    | nn.AlphaDropout
    | nn.FeatureAlphaDropout
)
AnyBatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
"""A lazy layer becomes one of these with its first batch."""
