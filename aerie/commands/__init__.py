"""The commands of `aerie`: `app` registers them; each file holds one command or one group of them."""
