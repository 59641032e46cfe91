"""Everything that needs the real model classes: torch and transformers are imported inside its functions only."""
