"""What makes a function a cached, resumable, tracked stage."""
