//! Reliable connection over RoCEv2, sans-IO.
