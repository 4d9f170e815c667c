"""The papers' tables as data (`schema`), the papers' own counters, and our numbers next to the printed ones (`compute`)."""
