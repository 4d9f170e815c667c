"""Results of studies and analyses as plain data, with their statistics and their wording."""
