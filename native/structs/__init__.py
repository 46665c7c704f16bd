"""What whole steps in C++ read: models, plans and drafts as C structs."""
