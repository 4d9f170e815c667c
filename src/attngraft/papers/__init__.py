"""The papers' tables (`schema`), their counting rules (`counters`), and our numbers beside theirs (`compute`)."""
