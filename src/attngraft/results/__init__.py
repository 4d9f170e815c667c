"""Results of studies and analyses as plain data, their statistics and their wording."""
