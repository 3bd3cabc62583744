"""The mathematics of sampling, drafting and verifying: numpy over token ids and arrays, no clock, disk or model."""
