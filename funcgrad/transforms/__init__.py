"""Program → Program: jvp, split, transpose, mask, batch, prune, zeros. Each is one loop over the equations."""
