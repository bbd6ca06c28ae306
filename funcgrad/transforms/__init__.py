"""Program → Program: jvp, split, transpose, mask, batch, prune. Each is one loop over the equations."""
