//! Naive models: what a part of Invar must do, written in the most obvious way. Each comes with an
//! operation type that property tests, the simulator and the fuzz targets share.

pub mod coll;
pub mod comm;
pub mod mr_cache;
pub mod roce;
pub mod socket;
