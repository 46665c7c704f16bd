"""Single operations in C++, each replacing the reference of its name in `engine` or `spec`; `table` lists them."""
