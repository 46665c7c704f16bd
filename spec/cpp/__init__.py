"""What speculation does in C++ on a CPU, each function beside the torch that it must equal."""
