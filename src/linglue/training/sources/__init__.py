"""Where training pairs come from."""
