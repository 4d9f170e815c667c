"""The papers' tables (`schema`), their counting rules (`counters`), and the comparison with our numbers (`compute`)."""
