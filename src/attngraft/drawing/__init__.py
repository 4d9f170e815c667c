"""Drawing primitives shared by reports and evaluations."""
