"""The papers' tables (`schema`), their counting rules (`counters`), and our numbers (`compute`)."""
