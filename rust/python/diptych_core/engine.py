"""The host's side: an engine, and queues of frames that an event loop watches by file descriptor."""

from diptych_core._native import Accepted, Engine, Failure, Finished, Frame, FrameQueue

__all__ = ["Accepted", "Engine", "Failure", "Finished", "Frame", "FrameQueue"]
