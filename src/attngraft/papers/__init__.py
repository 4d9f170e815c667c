"""The papers' tables as data (`schema`), the papers' counting rules, and comparison with our numbers (`compute`)."""
