"""Tables and charts, made from records alone."""
