"""What runs an implementation. Engines know no kernel."""
