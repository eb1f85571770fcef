//! invar
