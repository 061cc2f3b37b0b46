"""How `place` finds where a gang costs least: over domains, with a proven bound."""
