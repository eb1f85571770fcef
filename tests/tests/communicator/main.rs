//! Tests communicators, over shared memory and over networks. Ranks are threads of this process, unless
//! a test kills them.

mod failures;
mod flaps;
mod forks;
mod groups;
mod hosts;
mod killed;
mod networks;
mod operations;
mod pending;
mod posted;
mod rails;
mod rig;
mod silence;
mod stuck;
mod transfers;
