"""Which client starts next, and on which slot. Pure: no clock, no Ray."""
