"""Features of training pairs, made once and read at every step: `build` makes them, `store` keeps and reads them."""
