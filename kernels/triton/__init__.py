"""Each operation as a Triton kernel and its launcher, one file each. Names and signatures are those of `reference`."""
