//! A `libibverbs.so.1` whose devices are Invar's software NICs.
//!
//! A program that is written for libibverbs runs on it unchanged, without RDMA hardware, kernel module or
//! root. `invar run` gives the library to a program. `docs/soft-verbs.md` says what works.
//!
//! ```text
//! program            ibv_*, the operations of ibv_context
//!   device.rs        list, attributes              open.rs      operations
//!   query.rs         ports, GIDs                   memory.rs    domains, regions
//!   events.rs        queues of events              channel.rs   completion channels
//!   completion.rs    completion queues             queue_pair.rs, transition.rs, post.rs
//!   shared_receive.rs  shared receive queues        work_requests.rs  what all posts share
//!   address.rs       address handles               batch.rs, builder.rs  sends built by functions
//!   turn.rs          state between calls           reader.rs    completions read by functions
//!   window.rs        memory windows                unacknowledged.rs  events that the program holds
//!   port_watch.rs    events of ports               signals.rs   threads without the program's handlers
//!   files.rs         files of devices, for UCX
//!   refused.rs       what is not supported         provider.rs  what drivers of rdma-core import
//! invar_linux::soft  SoftNic, one for each device and process
//! ```
//!
//! **Peers.** A program tells its peer a GID and a queue pair number. The number tells the UDP port
//! ([`invar_linux::soft::shared_ports`]), or `INVAR_SOFT_PORT` does (`peers.rs`).
//!
//! **Handles.** Calls that create, change and destroy objects check that a pointer names a living object
//! of the right kind (`object.rs`). Posts and polls trust their pointer, as rdma-core does.

#[macro_use]
mod symbols;

mod address;
mod attributes;
mod batch;
mod builder;
mod channel;
mod completion;
mod device;
mod errno;
mod events;
mod files;
mod memory;
mod names;
mod object;
mod open;
mod peers;
mod port_watch;
mod post;
mod provider;
mod query;
mod queue_pair;
mod reader;
mod refused;
mod shared_receive;
mod signals;
mod transition;
mod turn;
mod unacknowledged;
mod window;
mod work_requests;
