//! tests

pub mod model;
