"""What a load test shows: tables, pictures, and a page that needs no network."""
