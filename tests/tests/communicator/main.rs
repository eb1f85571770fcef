//! Communicators, over shared memory and over networks. Ranks are threads of this process, unless
//! they are to be killed.

mod failures;
mod groups;
mod hosts;
mod killed;
mod networks;
mod operations;
mod pending;
mod rig;
mod silence;
mod transfers;
