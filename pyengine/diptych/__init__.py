"""The engine API of Diptych."""
