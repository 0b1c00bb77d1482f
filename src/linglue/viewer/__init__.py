"""A reconstruction in the browser: what is shown, read from a work folder, and the server that shows it"""
