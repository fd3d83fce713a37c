"""How settings declare themselves."""
