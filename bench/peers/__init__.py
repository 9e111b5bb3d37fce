"""Diptych beside other engines on this machine's CPU: one client, the same loads, one engine alive at a time."""
