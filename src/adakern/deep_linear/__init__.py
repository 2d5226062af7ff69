"""Deep linear networks without sampling: the saddle of every layer in terms of one C×C matrix."""
