//! collNet: NCCL's CollNet algorithms over a network without a switch that reduces. The processors of the
//! hosts reduce, by a [`Communicator`](invar::Communicator).
//!
//! - `setup` makes listening comms and collective comms. Each listening comm has the listener of a hub;
//!   the hub of rank 0 is the one at which the ranks meet, so rank 0's handle is their unique id.
//! - `comm` has the collective comms, and `request` the collectives that are not done.
//! - `memory` has the registrations, and `staging` the host memory in the place of GPU memory.
//! - `window` turns a window of blocks into collectives.
//! - `entry` has the calls of the function table.

mod comm;
mod entry;
mod memory;
mod request;
mod setup;
mod staging;
mod window;

pub(crate) use entry::{
    dereg_mr, iallgather, iallreduce, iflush, ireducescatter, reduce_support, reg_mr,
    reg_mr_dma_buf, test,
};
pub(crate) use setup::{abandon, close_coll, close_listen, connect, listen, listen_v11};
