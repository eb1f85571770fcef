//! Naive models of parts of Invar, written in the most obvious way. Each model has an operation type
//! that property tests, the simulator and the fuzz targets share.

pub mod coll;
pub mod comm;
pub mod mr_cache;
pub mod roce;
pub mod socket;
