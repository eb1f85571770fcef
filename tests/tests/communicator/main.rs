//! Communicators whose ranks are threads of this process, over shared memory and over networks.

mod failures;
mod groups;
mod networks;
mod operations;
mod pending;
mod rig;
