"""Single operations in C++, each in place of the reference of its name in `engine` or `spec`; `table` lists them."""
